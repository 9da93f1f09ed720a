// For programs that print what each driver call gave, so that two runs can be compared.
#pragma once
#include <cuda.h>

#include <cstdio>

extern const char kernels_ptx[];  // tests/e2e/apps/kernels.cu

namespace parity {

inline const char* name_of(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "no name";
}

inline CUresult show(CUresult result, const char* call) {
  std::printf("%s -> %s\n", call, name_of(result));
  std::fflush(stdout);
  return result;
}

inline CUresult launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared, CUstream stream, void** parameters,
                void** extra = nullptr) {
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, extra);
}

// Handles and addresses that were never given out.
template <class T>
T wild(unsigned long long bits = 0x00007fffdeadbee0ull) {
  return reinterpret_cast<T>(bits);
}

constexpr CUdeviceptr kWildAddress = 0x00000000deadb000ull;
constexpr CUdeviceptr kHighAddress = 0xfffffffffffff000ull;

// The parts of the program.
#define PART(function, context) void function();
#include "tests/parity/parts.def"
#undef PART

}  // namespace parity

#define SHOW(call) ::parity::show((call), #call)
// With a value that the call wrote; only where it succeeded.
#define SHOW_VALUE(call, format, ...)                                                       \
  do {                                                                                      \
    if (::parity::show((call), #call) == CUDA_SUCCESS) std::printf("%s = " format "\n", #call, __VA_ARGS__); \
  } while (false)
