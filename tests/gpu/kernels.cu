/* Kernels of the GPU tests: work like that of a training step, and small work of a second process. */

/* Compute c = a * b for n x n matrices; n is a multiple of 64. A block of 16 x 16 threads computes
 * 64 x 64 elements of c. */
extern "C" __global__ void __launch_bounds__(256) matmul(const float *a, const float *b, float *c, int n)
{
	__shared__ float as[64][17], bs[16][64];
	float sum[4][4] = {};
	int row = blockIdx.y * 64, col = blockIdx.x * 64, t = threadIdx.y * 16 + threadIdx.x;

	for (int k = 0; k < n; k += 16) {
		for (int i = 0; i < 4; i++) {
			int e = t + i * 256;

			as[e / 16][e % 16] = a[(size_t)(row + e / 16) * n + k + e % 16];
			bs[e / 64][e % 64] = b[(size_t)(k + e / 64) * n + col + e % 64];
		}
		__syncthreads();
		for (int j = 0; j < 16; j++)
			for (int y = 0; y < 4; y++)
				for (int x = 0; x < 4; x++)
					sum[y][x] += as[threadIdx.y * 4 + y][j] * bs[j][threadIdx.x + 16 * x];
		__syncthreads();
	}
	for (int y = 0; y < 4; y++)
		for (int x = 0; x < 4; x++)
			c[(size_t)(row + threadIdx.y * 4 + y) * n + col + threadIdx.x + 16 * x] = sum[y][x];
}

/* Add 1 to each element of x. The number of blocks does not matter. */
extern "C" __global__ void increment(float *x, size_t n)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		x[i] += 1.0f;
}
