// What the library does not have says so: once per function, with the reason of protocol/cuda/unsupported.def.
#include <atomic>
#include <iterator>
#include <string_view>

#include "client/log.h"
#include "protocol/cuda/exports.h"

namespace {

constexpr const char* kSymbols[] = {
#define CUDA_SYMBOL(name, version) #name,
#include "protocol/cuda/symbols.def"
#undef CUDA_SYMBOL
};

struct Reason {
  std::string_view function;
  const char* text;
};
constexpr Reason kReasons[] = {
#define CUDA_UNSUPPORTED(function, reason) {#function, reason},
#include "protocol/cuda/unsupported.def"
#undef CUDA_UNSUPPORTED
};

std::atomic<bool> told[std::size(kReasons)];

}  // namespace

extern "C" CUresult gpupool_cuda_unsupported(uint32_t symbol) {
  const std::string_view function = gpupool::cuda::base_name(kSymbols[symbol]);
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (kReasons[i].function != function || told[i].exchange(true)) continue;
    gpupool::client::complain("%s is not supported: %s", kSymbols[symbol], kReasons[i].text);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
