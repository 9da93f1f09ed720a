// cuGetProcAddress's question, answered from symbols.def: which symbol is meant by (base name, CUDA version,
// flags)? Pure functions over constant tables: any thread, no allocation, no failure but "not found".
#pragma once

#include <cstdint>
#include <string_view>

namespace gpupool::cuda {

// The newest CUDA version that symbols.def knows.
int newest_symbol_version();

// Symbols are numbered by their row in symbols.def. A name outside the range is "".
uint32_t symbol_count();
const char* symbol_name(uint32_t symbol);

// The row of a full name, as in "cuMemAlloc_v2"; symbol_count() where there is none.
uint32_t symbol_by_name(std::string_view full_name);

// The values are those of CUdriverProcAddressQueryResult, which cuda.h 11.8 does not have.
enum class SymbolStatus : int { found = 0, not_found = 1, version_not_sufficient = 2 };

// CUdriverProcAddress_flags, likewise.
enum SymbolFlags : uint64_t { kDefaultStream = 0, kLegacyStream = 1, kPerThreadDefaultStream = 2 };

struct SymbolMatch {
  SymbolStatus status = SymbolStatus::not_found;
  uint32_t symbol = 0;  // meaningful when found
};

// "cuMemcpyHtoDAsync" of "cuMemcpyHtoDAsync_v2_ptsz".
std::string_view base_name(std::string_view symbol);

// The newest version of `base_name` that is not newer than `cuda_version`; its per-thread twin where flags
// ask for it and the twin is not newer than that either. `base_name` is taken without _vN, _ptds and _ptsz,
// as CUDA documents it.
SymbolMatch find_symbol(std::string_view base_name, int cuda_version, uint64_t flags);

}  // namespace gpupool::cuda
