// The driver symbols of the library that this header is compiled into: their addresses, and cuGetProcAddress.
// Only for libraries made with gpupool_cuda_driver() (protocol/CMakeLists.txt), which adds exports.S
// and the linker flags that this header relies on. Any thread, no state.
//
// To override a stub, define the symbol strongly in a source of the library itself, with default visibility
// as CUDA_EXPORT does. A definition in a static archive has no effect, because the stub satisfies the linker
// first.
#pragma once

#include <cstdint>

#include "protocol/driver/cuda_header.h"
#include "protocol/driver/version_map.h"

#define CUDA_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
// From exports.S: the distance of each symbol of symbols.def, in their order, from this table.
extern const int32_t gpupool_cuda_symbol_offsets[] __attribute__((visibility("hidden")));

// Called with the symbol's number by the stub of every symbol that the library does not define. The default
// returns CUDA_ERROR_NOT_SUPPORTED; a library may define it to report the name as well.
__attribute__((visibility("hidden"))) CUresult gpupool_cuda_unsupported(uint32_t symbol);
}

// The stream that a _ptsz or _ptds function uses: there the null stream is the calling thread's own.
inline CUstream or_per_thread(CUstream stream) {
  return stream ? stream : CU_STREAM_PER_THREAD;
}
// For lists of arguments: those that are no streams stay.
template <class T>
T or_per_thread(T argument) {
  return argument;
}

namespace gpupool::cuda {

// Address of this library's own definition of the symbol, whatever other libcuda the process has loaded.
// `symbol` < symbol_count().
inline void* symbol_address(uint32_t symbol) {
  const auto table = reinterpret_cast<uintptr_t>(gpupool_cuda_symbol_offsets);
  return reinterpret_cast<void*>(table + static_cast<intptr_t>(gpupool_cuda_symbol_offsets[symbol]));
}

// Implements cuGetProcAddress_v2: a missing symbol is reported in *status (which may be null), with
// CUDA_SUCCESS.
inline CUresult get_proc_address_v2(const char* name, void** address, int cuda_version, uint64_t flags,
                                    int* status, int driver_version) {
  if (name == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *address = nullptr;
  if (flags > kPerThreadDefaultStream || cuda_version > driver_version) return CUDA_ERROR_INVALID_VALUE;
  SymbolMatch match = find_symbol(name, cuda_version, flags);
  // A driver does not know functions that are newer than itself.
  if (match.status == SymbolStatus::version_not_sufficient &&
      find_symbol(name, driver_version, flags).status != SymbolStatus::found) {
    match.status = SymbolStatus::not_found;
  }
  if (match.status == SymbolStatus::found) *address = symbol_address(match.symbol);
  if (status != nullptr) *status = static_cast<int>(match.status);
  return CUDA_SUCCESS;
}

// Implements cuGetProcAddress of CUDA 11.3: a missing symbol is CUDA_ERROR_NOT_FOUND.
inline CUresult get_proc_address_v1(const char* name, void** address, int cuda_version, uint64_t flags,
                                    int driver_version) {
  const CUresult result = get_proc_address_v2(name, address, cuda_version, flags, nullptr, driver_version);
  return result == CUDA_SUCCESS && *address == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}

}  // namespace gpupool::cuda
