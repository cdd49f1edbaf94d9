// Time of one all-reduce of a small tensor with Gloo over TCP on loopback, for comparison with bps-latency:
// gloo-latency RANK SIZE STORE-FOLDER ALGORITHM BYTES ROUNDS. Rank 0 prints "gloo-ALGORITHM BYTES N MEDIAN_US P99_US".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static double now_us()
{
	return std::chrono::duration<double, std::micro>(
		std::chrono::steady_clock::now().time_since_epoch())
		.count();
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: gloo-latency RANK SIZE STORE-FOLDER ALGORITHM BYTES ROUNDS\n");
		return 64;
	}
	const int rank = atoi(argv[1]), size = atoi(argv[2]);
	const std::string algorithm = argv[4];
	const size_t count = strtoul(argv[5], nullptr, 10) / sizeof(float), rounds = strtoul(argv[6], nullptr, 10);

	gloo::transport::tcp::attr attr;
	attr.hostname = "127.0.0.1";
	auto device = gloo::transport::tcp::CreateDevice(attr);
	gloo::rendezvous::FileStore store(argv[3]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
	context->connectFullMesh(store, device);

	std::vector<float> data(count);
	std::vector<float *> pointers{data.data()};
	std::unique_ptr<gloo::Algorithm> old;
	if (algorithm == "halving-doubling")
		old.reset(new gloo::AllreduceHalvingDoubling<float>(context, pointers, (int)count));
	else if (algorithm == "ring-chunked")
		old.reset(new gloo::AllreduceRingChunked<float>(context, pointers, (int)count));
	gloo::AllreduceOptions options(context);
	options.setOutputs(pointers, count);
	options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
	options.setAlgorithm(algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
						  : gloo::AllreduceOptions::Algorithm::RING);

	std::vector<double> us;
	for (size_t i = 0; i < rounds + rounds / 5 + 10; i++) {
		std::fill(data.begin(), data.end(), float(i));
		const double start = now_us();
		if (old)
			old->run();
		else
			gloo::allreduce(options);
		if (i >= rounds / 5 + 10)
			us.push_back(now_us() - start);
		if (data[count - 1] != float(i) * float(size)) {
			fprintf(stderr, "gloo-latency: wrong sum in round %zu\n", i);
			return 1;
		}
	}
	std::sort(us.begin(), us.end());
	if (rank == 0)
		printf("gloo-%s %zu %zu %.1f %.1f\n", algorithm.c_str(), count * sizeof(float), rounds,
			us[us.size() / 2], us[us.size() - 1 - us.size() / 100]);
	return 0;
}
