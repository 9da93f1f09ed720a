// gpupool-bench-mechanisms: the programs that gpupool-bench --suite mechanisms measures; they use only the
// driver API.
//
//     gpupool-bench-mechanisms allocations COUNT              allocates COUNT x 32 MiB; then 4 KiB blocks
//     gpupool-bench-mechanisms pooled COUNT                   bursts of cuMemAllocAsync/cuMemFreeAsync
//     gpupool-bench-mechanisms copies repetitive|random MIB   copies pinned memory to the device and back
//     gpupool-bench-mechanisms image MIB                      loads a module with this much generated PTX
#include <cstring>
#include <random>
#include <string>

#include "tests/bench/program.h"

namespace {

using namespace gpupool::bench;

double allocation_us(size_t bytes, CUdeviceptr* memory) {
  const auto begin = Clock::now();
  CHECK(cuMemAlloc(memory, bytes));
  return microseconds(begin);
}

// An allocation of 32 MiB needs its own mapping. It is not freed, so that the next one needs a new mapping as
// well.
void allocations(size_t count) {
  constexpr size_t kFresh = size_t{32} << 20, kSmall = 4096;
  std::vector<double> fresh, small;
  for (size_t i = 0; i < count; ++i) {
    CUdeviceptr memory = 0;
    fresh.push_back(allocation_us(kFresh, &memory));
    CHECK(cuCtxSynchronize());
  }
  for (int i = 0; i < 2000; ++i) {
    CUdeviceptr memory = 0;
    const double taken = allocation_us(kSmall, &memory);
    const auto begin = Clock::now();
    CHECK(cuMemFree(memory));
    small.push_back(taken + microseconds(begin));
  }
  report("fresh_us", middle(fresh));
  report("small_us", middle(small));
}

// The memory pool keeps freed memory, so only the first allocation needs device memory.
void pooled(int count, CUstream stream) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kBurst = 100;
  std::vector<double> pairs;
  for (int i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    for (int j = 0; j < kBurst; ++j) {
      CUdeviceptr memory = 0;
      CHECK(cuMemAllocAsync(&memory, kBytes, stream));
      CHECK(cuMemFreeAsync(memory, stream));
    }
    if (i != 0) pairs.push_back(microseconds(begin) / kBurst);
  }
  CHECK(cuStreamSynchronize(stream));
  report("pair_us", middle(pairs));
}

// Fills `data` with random bytes, or with alternating 16-byte runs of one letter and of four random letters,
// which compress to about half.
void fill(char* data, size_t bytes, bool repetitive) {
  std::mt19937 random(5);
  for (size_t i = 0; i < bytes; ++i) {
    const auto next = static_cast<unsigned>(random());
    if (!repetitive)
      data[i] = static_cast<char>(next);
    else
      data[i] = i / 16 % 2 != 0 ? 'a' : "acgt"[next & 3];
  }
}

void copies(bool repetitive, size_t bytes, CUstream stream) {
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  CHECK(cuMemAlloc(&device, bytes));
  CHECK(cuMemHostAlloc(&pinned, bytes, 0));
  fill(static_cast<char*>(pinned), bytes, repetitive);
  for (int i = 0; i < 20; ++i) {  // warm-up: the bulk connections open
    CHECK(cuMemcpyHtoDAsync(device, pinned, std::min<size_t>(bytes, 256 << 10), stream));
    CHECK(cuStreamSynchronize(stream));
  }
  std::vector<double> up, down;
  for (int i = 0; i < 3; ++i) {
    auto begin = Clock::now();
    CHECK(cuMemcpyHtoDAsync(device, pinned, bytes, stream));
    CHECK(cuStreamSynchronize(stream));
    up.push_back(microseconds(begin));
    begin = Clock::now();
    CHECK(cuMemcpyDtoHAsync(pinned, device, bytes, stream));
    CHECK(cuStreamSynchronize(stream));
    down.push_back(microseconds(begin));
  }
  report("h2d_MBps", static_cast<double>(bytes) / middle(up));
  report("d2h_MBps", static_cast<double>(bytes) / middle(down));
  CHECK(cuMemFreeHost(pinned));
  CHECK(cuMemFree(device));
}

std::string generated_ptx(size_t bytes) {
  std::string ptx = ".version 7.0\n.target sm_50\n.address_size 64\n";
  for (int kernel = 0; ptx.size() < bytes; ++kernel) {
    ptx += ".visible .entry kernel" + std::to_string(kernel) +
           "(.param .u32 n) {\n .reg .b32 %r<3>;\n ld.param.u32 %r1, [n];\n";
    for (int i = 0; i < 400; ++i) ptx += " add.u32 %r1, %r1, " + std::to_string(kernel * 400 + i) + ";\n";
    ptx += " ret;\n}\n";
  }
  return ptx;
}

void image(size_t bytes) {
  const std::string ptx = generated_ptx(bytes);
  CUmodule module = nullptr;
  const auto begin = Clock::now();
  CHECK(cuModuleLoadData(&module, ptx.c_str()));
  report("load_ms", microseconds(begin) * 1e-3);
  CHECK(cuModuleUnload(module));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const size_t number = argc > 2 ? std::strtoull(argv[argc - 1], nullptr, 10) : 0;
  if (number == 0 || (what != "allocations" && what != "pooled" && what != "copies" && what != "image")) {
    std::fprintf(stderr,
                 "usage: gpupool-bench-mechanisms allocations COUNT | pooled COUNT | copies "
                 "repetitive|random MIB | image MIB\n");
    return 2;
  }
  const CUstream stream = start_cuda();
  if (what == "allocations")
    allocations(number);
  else if (what == "pooled")
    pooled(static_cast<int>(number), stream);
  else if (what == "copies")
    copies(std::string(argv[2]) == "repetitive", number << 20, stream);
  else
    image(number << 20);
  CHECK(cuStreamDestroy(stream));
  return 0;
}
