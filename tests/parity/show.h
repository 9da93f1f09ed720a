// Helpers of the parity programs, which print the result of each driver call so that two runs can be
// compared.
#pragma once
#include <cuda.h>
#include <setjmp.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

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

// A driver may crash in a call with an invalid argument. NVIDIA's driver follows handles that it never made.
// With PARITY_GUARDED=1 in the environment such a call ends neither the program nor the comparison: calls
// with wild handles are left out, and a call that crashes prints "crashes". The driver may then hold a lock,
// so a later call can hang.
struct Guard {
  bool on = false;
  volatile bool armed = false;
  sigjmp_buf before_call;
};
extern Guard guard;
void install_guard();  // before cuInit; call once

template <class Call>
CUresult attempt(Call call, const char* text) {
  if (!guard.on) return show(call(), text);
  const bool wild = std::strstr(text, "wild<") != nullptr;
  if (wild || sigsetjmp(guard.before_call, 1) != 0) {
    std::printf("%s -> %s\n", text, wild ? "not called" : "crashes");
    std::fflush(stdout);
    return CUDA_ERROR_UNKNOWN;
  }
  guard.armed = true;
  const CUresult result = call();
  guard.armed = false;
  return show(result, text);
}

// Call with the shown result of a call. Ends the program if it is not the expected one: both sides could give
// the same wrong result. With PARITY_GUARDED=1 NVIDIA's driver defines what is right, and the part goes on.
inline void require(CUresult result, CUresult expected, const char* call) {
  if (result == expected || guard.on) return;
  std::printf("%s must give %s\n", call, name_of(expected));
  std::fflush(stdout);
  std::_Exit(EXIT_FAILURE);
}

inline CUresult launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared,
                       CUstream stream, void** parameters, void** extra = nullptr) {
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, extra);
}

// Ends the program unless the condition, which CUDA's documentation guarantees, holds. With PARITY_GUARDED=1
// the part goes on, and the comparison shows whether the other side differs.
inline void expect(bool holds, const char* condition) {
  if (holds) return;
  std::printf("this must hold: %s\n", condition);
  std::fflush(stdout);
  if (!guard.on) std::_Exit(EXIT_FAILURE);
}

// Invalid handles and addresses.
template <class T>
T wild(unsigned long long bits = 0x00007fffdeadbee0ull) {
  return reinterpret_cast<T>(bits);
}

constexpr CUdeviceptr kWildAddress = 0x00000000deadb000ull;
constexpr CUdeviceptr kHighAddress = 0xfffffffffffff000ull;

// Returns a path in TMPDIR that no other process uses; the caller removes the file.
inline std::string temporary_file(const char* name) {
  const char* const folder = std::getenv("TMPDIR");
  return std::string(folder ? folder : "/tmp") + "/driver_parity-" + std::to_string(getpid()) + "-" + name;
}
inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Prints all results of cuPointerGetAttribute for an address: addresses as offsets from it, handles and ids
// only by comparison.
inline void show_pointer_attributes(const char* what, CUdeviceptr of) {
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  for (int attribute = 0; attribute < 25; ++attribute) {
    unsigned long long values[8] = {};  // P2P_TOKENS has two
    const unsigned long long& value = values[0];
    const CUresult result = cuPointerGetAttribute(values, static_cast<CUpointer_attribute>(attribute), of);
    std::printf("pointer attribute %d of %s -> %s", attribute, what, name_of(result));
    if (result != CUDA_SUCCESS) {
      std::printf("\n");
      continue;
    }
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_CONTEXT:
        std::printf(" %s\n", value == reinterpret_cast<uintptr_t>(current) ? "the current one"
                             : value == 0                                  ? "none"
                                                                           : "another");
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (value == 0)
          std::printf(" null\n");
        else
          std::printf(" %lld\n", static_cast<long long>(value - of));
        break;
      case 18:                                               // MAPPING_SIZE
        std::printf(" %s\n", value != 0 ? "some" : "none");  // depends on the device
        break;
      case 19:  // MAPPING_BASE_ADDR
        std::printf(" %s\n", value == 0 ? "null" : value <= of ? "not behind it" : "behind it");
        break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      case 20:  // MEMORY_BLOCK_ID
        std::printf(" %s\n", value != 0 ? "some" : "none");
        break;
      default: std::printf(" %lld\n", static_cast<long long>(value));
    }
  }
}

// All parts of the program.
#define PART(function, ...) void function();
#include "tests/parity/parts.def"
#undef PART

}  // namespace parity

#define SHOW_NAMED(call, name) ::parity::attempt([&] { return call; }, name)
#define SHOW(call) SHOW_NAMED(call, #call)
// A call that the server may refuse, which a later call reports in the default mode. Skipped if PARITY_QUEUED
// is set.
#define LATE(call)                                 \
  do {                                             \
    if (!std::getenv("PARITY_QUEUED")) SHOW(call); \
  } while (false)
#define REQUIRE(expected, call) ::parity::require(SHOW(call), (expected), #call)
// For calls after which NVIDIA's driver does not work correctly any more, and which it does not reject.
#define SHOW_UNLESS_GUARDED(call)        \
  do {                                   \
    if (!::parity::guard.on) SHOW(call); \
  } while (false)
#define EXPECT(condition) ::parity::expect((condition), #condition)
// Also prints a value that the call wrote, if it succeeded.
#define SHOW_VALUE(call, format, ...)                                                                  \
  do {                                                                                                 \
    if (SHOW_NAMED(call, #call) == CUDA_SUCCESS) std::printf("%s = " format "\n", #call, __VA_ARGS__); \
  } while (false)
