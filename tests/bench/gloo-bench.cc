// Time of Gloo's all-reduce (f32 sum) over TCP, for comparison with bps-bench:
//     gloo-bench RANK SIZE STORE-FOLDER ADDRESS ALGORITHM SECONDS BYTES...
// ADDRESS is that of this process. Rank 0 prints a line of JSON per size. Algorithms: ring, bcube (Gloo's newer interface), halving-doubling, ring-chunked.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static double now_s()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Run {
	std::shared_ptr<gloo::rendezvous::Context> context;
	std::string algorithm;
	int rank, size;
	double seconds;
	uint64_t bytes_moved = 0;
};

class AllReduce
{
public:
	AllReduce(Run &run, size_t count) : run_(run), data_(count), options_(run.context)
	{
		std::vector<float *> pointers{data_.data()};

		if (run.algorithm == "halving-doubling")
			old_.reset(new gloo::AllreduceHalvingDoubling<float>(run.context, pointers, (int)count));
		else if (run.algorithm == "ring-chunked")
			old_.reset(new gloo::AllreduceRingChunked<float>(run.context, pointers, (int)count));
		options_.setOutputs(pointers, count);
		options_.setReduceFunction(
			static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
		options_.setAlgorithm(run.algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
							       : gloo::AllreduceOptions::Algorithm::RING);
	}

	// Run n rounds and store the seconds of each in times. The sum of the first round is checked.
	void rounds(uint64_t n, std::vector<double> &times)
	{
		std::fill(data_.begin(), data_.end(), 1.0f);
		for (uint64_t i = 0; i < n; i++) {
			const double start = now_s();

			if (old_)
				old_->run();
			else
				gloo::allreduce(options_);
			times.push_back(now_s() - start);
			run_.bytes_moved += data_.size() * sizeof(float);
			if (i == 0 && (data_.front() != float(run_.size) || data_.back() != float(run_.size))) {
				fprintf(stderr, "gloo-bench: wrong sum\n");
				exit(1);
			}
		}
	}

private:
	Run &run_;
	std::vector<float> data_;
	gloo::AllreduceOptions options_;
	std::unique_ptr<gloo::Algorithm> old_;
};

static uint64_t agree(Run &run, uint64_t value)
{
	gloo::BroadcastOptions options(run.context);

	options.setOutput(&value, 1);
	options.setRoot(0);
	gloo::broadcast(options);
	return value;
}

static void measure(Run &run, size_t bytes)
{
	AllReduce reduce(run, bytes / sizeof(float));
	std::vector<double> times;
	uint64_t n = 1, wanted = 0;

	// Repeated in-place sums overflow to infinity, but adding infinity takes as long as adding any other number.
	while (!wanted) {
		times.clear();
		reduce.rounds(n, times);
		double elapsed = 0;
		for (double t : times)
			elapsed += t;
		if (n > 1 && elapsed > run.seconds * 0.1)
			wanted = 1 + uint64_t(run.seconds / elapsed * double(n));
		wanted = agree(run, wanted);
		n *= 2;
	}
	times.clear();
	gloo::BarrierOptions barrier(run.context);
	gloo::barrier(barrier);
	const double start = now_s();
	reduce.rounds(wanted, times);
	const double elapsed = now_s() - start;
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
	if (argc < 8) {
		fprintf(stderr, "usage: gloo-bench RANK SIZE STORE-FOLDER ADDRESS ALGORITHM SECONDS BYTES...\n");
		return 64;
	}
	Run run;
	run.rank = atoi(argv[1]);
	run.size = atoi(argv[2]);
	run.algorithm = argv[5];
	if (run.algorithm != "ring" && run.algorithm != "ring-chunked" && run.algorithm != "bcube" &&
		run.algorithm != "halving-doubling") {
		fprintf(stderr, "gloo-bench: no such algorithm: %s\n", argv[5]);
		return 64;
	}
	run.seconds = atof(argv[6]);

	gloo::transport::tcp::attr attr;
	attr.hostname = argv[4];
	gloo::rendezvous::FileStore store(argv[3]);
	run.context = std::make_shared<gloo::rendezvous::Context>(run.rank, run.size);
	auto device = gloo::transport::tcp::CreateDevice(attr);
	run.context->connectFullMesh(store, device);
	for (int i = 7; i < argc; i++)
		measure(run, strtoul(argv[i], nullptr, 10));
	return 0;
}
