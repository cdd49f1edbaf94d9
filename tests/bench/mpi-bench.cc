// Time of Open MPI's all-reduce (f32 sum, in place), for comparison with bps-bench; started by mpirun:
//     mpi-bench SECONDS BYTES...
// Rank 0 prints a line of JSON per size.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>

struct Run {
	int rank, size;
	double seconds;
	uint64_t bytes_moved = 0;
};

// Run n rounds and store the seconds of each in times. The sum of the first round is checked.
static void rounds(Run &run, std::vector<float> &data, uint64_t n, std::vector<double> &times)
{
	std::fill(data.begin(), data.end(), 1.0f);
	for (uint64_t i = 0; i < n; i++) {
		const double start = MPI_Wtime();

		MPI_Allreduce(MPI_IN_PLACE, data.data(), int(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		times.push_back(MPI_Wtime() - start);
		run.bytes_moved += data.size() * sizeof(float);
		if (i == 0 && (data.front() != float(run.size) || data.back() != float(run.size))) {
			fprintf(stderr, "mpi-bench: wrong sum\n");
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
}

static void measure(Run &run, size_t bytes)
{
	std::vector<float> data(bytes / sizeof(float));
	std::vector<double> times;
	uint64_t n = 1, wanted = 0;

	while (!wanted) {
		times.clear();
		rounds(run, data, n, times);
		double elapsed = 0;
		for (double t : times)
			elapsed += t;
		if (n > 1 && elapsed > run.seconds * 0.1)
			wanted = 1 + uint64_t(run.seconds / elapsed * double(n));
		MPI_Bcast(&wanted, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
		n *= 2;
	}
	times.clear();
	MPI_Barrier(MPI_COMM_WORLD);
	const double start = MPI_Wtime();
	rounds(run, data, wanted, times);
	const double elapsed = MPI_Wtime() - start;
	std::sort(times.begin(), times.end());
	if (run.rank == 0)
		printf("{\"bytes\": %zu, \"rounds\": %zu, \"median_us\": %.2f, \"p99_us\": %.2f, \"min_us\": %.2f, "
		       "\"elapsed_s\": %.6f, \"goodput_mbps\": %.3f, \"bytes_moved\": %llu}\n",
			bytes, size_t(wanted), times[times.size() / 2] * 1e6, times[times.size() * 99 / 100] * 1e6,
			times[0] * 1e6, elapsed, double(bytes) * double(wanted) / elapsed / 1e6,
			(unsigned long long)run.bytes_moved);
}

int main(int argc, char **argv)
{
	Run run;

	if (argc < 3) {
		fprintf(stderr, "usage: mpirun ... mpi-bench SECONDS BYTES...\n");
		return 64;
	}
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &run.size);
	run.seconds = atof(argv[1]);
	for (int i = 2; i < argc; i++)
		measure(run, strtoul(argv[i], nullptr, 10));
	MPI_Finalize();
	return 0;
}
