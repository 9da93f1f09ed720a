// Uploads, computes and downloads chunks on three overlapping streams, ordered by events.
#include <vector>

#include "common/example.h"

// Some rounds of an integer hash: work per element with an exact result.
__host__ __device__ inline uint32_t mix(uint32_t value, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    value = (value ^ (value >> 16)) * 0x7feb352du;
    value = (value ^ (value >> 15)) * 0x846ca68bu;
    value ^= value >> 16;
  }
  return value;
}

__global__ void mix_all(uint32_t* values, int count, int rounds) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = mix(values[i], rounds);
}

constexpr int kBuffers = 3;
constexpr int kRounds = 8;

int main(int argc, char** argv) {
  long chunks = 12, size = 50'000;
  parse_options(argc, argv, "Streams chunks of data through the device with overlapping transfers.",
                {{"--chunks", "chunks to process", &chunks, 1, 100'000},
                 {"--size", "elements per chunk", &size, 1, 1 << 24}});
  const int chunk_elements = static_cast<int>(size);
  const size_t total = chunks * size, chunk_bytes = size * sizeof(uint32_t);

  print_device();
  uint32_t* host;
  CUDA_CHECK(cudaMallocHost(&host, total * sizeof(uint32_t)));  // only pinned memory lets copies overlap
  for (size_t i = 0; i < total; ++i) host[i] = static_cast<uint32_t>(i);

  cudaStream_t upload, compute, download;
  for (cudaStream_t* stream : {&upload, &compute, &download})
    CUDA_CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  struct Buffer {
    uint32_t* data;
    cudaEvent_t uploaded, computed, free;
  } buffers[kBuffers];
  for (Buffer& buffer : buffers) {
    CUDA_CHECK(cudaMalloc(&buffer.data, chunk_bytes));
    for (cudaEvent_t* event : {&buffer.uploaded, &buffer.computed, &buffer.free})
      CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));

  CUDA_CHECK(cudaEventRecord(start, upload));
  for (long chunk = 0; chunk < chunks; ++chunk) {
    Buffer& buffer = buffers[chunk % kBuffers];
    uint32_t* chunk_data = host + chunk * size;
    if (chunk >= kBuffers) CUDA_CHECK(cudaStreamWaitEvent(upload, buffer.free, 0));
    CUDA_CHECK(cudaMemcpyAsync(buffer.data, chunk_data, chunk_bytes, cudaMemcpyHostToDevice, upload));
    CUDA_CHECK(cudaEventRecord(buffer.uploaded, upload));

    CUDA_CHECK(cudaStreamWaitEvent(compute, buffer.uploaded, 0));
    mix_all<<<(chunk_elements + 255) / 256, 256, 0, compute>>>(buffer.data, chunk_elements, kRounds);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaEventRecord(buffer.computed, compute));

    CUDA_CHECK(cudaStreamWaitEvent(download, buffer.computed, 0));
    CUDA_CHECK(cudaMemcpyAsync(chunk_data, buffer.data, chunk_bytes, cudaMemcpyDeviceToHost, download));
    CUDA_CHECK(cudaEventRecord(buffer.free, download));
  }
  CUDA_CHECK(cudaEventRecord(stop, download));
  CUDA_CHECK(cudaEventSynchronize(stop));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));

  bool passed = milliseconds >= 0;
  for (size_t i = 0; i < total; ++i) passed &= host[i] == mix(static_cast<uint32_t>(i), kRounds);
  std::printf("result   %ld chunks of %d elements through 3 streams, checksum %016llx\n", chunks,
              chunk_elements, static_cast<unsigned long long>(checksum(host, total * sizeof(uint32_t))));

  for (Buffer& buffer : buffers) {
    CUDA_CHECK(cudaFree(buffer.data));
    for (cudaEvent_t event : {buffer.uploaded, buffer.computed, buffer.free})
      CUDA_CHECK(cudaEventDestroy(event));
  }
  for (cudaEvent_t event : {start, stop}) CUDA_CHECK(cudaEventDestroy(event));
  for (cudaStream_t stream : {upload, compute, download}) CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaFreeHost(host));
  return finish(passed, milliseconds);
}
