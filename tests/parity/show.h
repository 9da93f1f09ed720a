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

// Handles and addresses that were never given out.
template <class T>
T wild(unsigned long long bits = 0x00007fffdeadbee0ull) {
  return reinterpret_cast<T>(bits);
}

constexpr CUdeviceptr kWildAddress = 0x00000000deadb000ull;
constexpr CUdeviceptr kHighAddress = 0xfffffffffffff000ull;

// The parts of the program.
void before_initialising();
void devices();
void contexts();
void device_memory();
void host_memory();
void managed_memory();
void streams();
void events();
void graphs();
void conditional_graphs();
void modules();
void libraries();
void linking();
void virtual_memory();
void memory_pools();
void small_calls();
void arrays();
void more_calls();
void green_contexts();
void destroyed_things();
void without_a_context();
void sticky_errors();

}  // namespace parity

#define SHOW(call) ::parity::show((call), #call)
// With a value that the call wrote; only where it succeeded.
#define SHOW_VALUE(call, format, ...)                                                       \
  do {                                                                                      \
    if (::parity::show((call), #call) == CUDA_SUCCESS) std::printf("%s = " format "\n", #call, __VA_ARGS__); \
  } while (false)
