// Symbols of functions that this library does not implement. Each logs once when called: the reason from
// protocol/driver/unsupported.def, or that the function is newer than the library. Functions of cudaGL.h,
// cudaVDPAU.h and cudaEGL.h, which unsupported.def does not list, fail silently, because programs then use
// their fallbacks.
#include <atomic>
#include <iterator>
#include <string_view>

#include "client/process/log.h"
#include "protocol/driver/exports.h"

namespace {

struct Symbol {
  const char* name;
  int version;
};
constexpr Symbol kSymbols[] = {
#define CUDA_SYMBOL(name, version) {#name, version},
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
};

struct Reason {
  std::string_view function;
  const char* text;
};
constexpr Reason kReasons[] = {
#define CUDA_UNSUPPORTED(function, reason) {#function, reason},
#include "protocol/driver/unsupported.def"
#undef CUDA_UNSUPPORTED
};

std::atomic<bool> reported[std::size(kReasons)];
std::atomic<bool> reported_newer[std::size(kSymbols)];

}  // namespace

extern "C" CUresult gpupool_cuda_unsupported(uint32_t symbol) {
  using gpupool::client::log_error;
  const auto& [name, version] = kSymbols[symbol];
  if (version > CUDA_VERSION && !reported_newer[symbol].exchange(true)) {
    log_error("%s is not supported: it was added in CUDA %d.%d, and this library implements CUDA up to %d.%d",
              name, version / 1000, version % 1000 / 10, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
  }
  const std::string_view function = gpupool::cuda::base_name(name);
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (kReasons[i].function != function || reported[i].exchange(true)) continue;
    log_error("%s is not supported: %s", name, kReasons[i].text);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
