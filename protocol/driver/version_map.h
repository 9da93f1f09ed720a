// Answers cuGetProcAddress from symbols.def: finds the symbol for a base name, CUDA version and flags. Pure
// functions over constant tables: any thread, no allocation, no failure but "not found".
#pragma once

#include <cstdint>
#include <string_view>

namespace gpupool::cuda {

// The newest CUDA version in symbols.def.
int newest_symbol_version();

// Symbols are numbered by their row in symbols.def. The name of any other number is "".
uint32_t symbol_count();
const char* symbol_name(uint32_t symbol);

// Row of a full name like "cuMemAlloc_v2"; symbol_count() if there is none.
uint32_t symbol_by_name(std::string_view full_name);

// Values of CUdriverProcAddressQueryResult, which cuda.h 11.8 lacks.
enum class SymbolStatus : int { found = 0, not_found = 1, version_not_sufficient = 2 };

// Values of CUdriverProcAddress_flags, which cuda.h 11.8 lacks.
enum SymbolFlags : uint64_t { kDefaultStream = 0, kLegacyStream = 1, kPerThreadDefaultStream = 2 };

struct SymbolMatch {
  SymbolStatus status = SymbolStatus::not_found;
  uint32_t symbol = 0;  // valid if found
};

// Returns "cuMemcpyHtoDAsync" for "cuMemcpyHtoDAsync_v2_ptsz".
std::string_view base_name(std::string_view symbol);

// Finds the newest version of `base_name` that is not newer than `cuda_version`, or its per-thread variant if
// the flags ask for one and it is not newer either. `base_name` has no _vN, _ptds or _ptsz, as CUDA
// documents.
SymbolMatch find_symbol(std::string_view base_name, int cuda_version, uint64_t flags);

}  // namespace gpupool::cuda
