// Functions that the pool does not have (protocol/cuda/unsupported.def), without an argument that means
// anything: softgpu has none of them, too.
#include "tests/parity/show.h"

namespace parity {
namespace {

template <class... Parameters>
CUresult call(CUresult (*function)(Parameters...)) {
  return function(Parameters{}...);
}

}  // namespace

void unsupported_calls() {
#define CUDA_UNSUPPORTED(function, reason) show(call(function), #function "(nothing)");
#include "protocol/cuda/unsupported.def"
#undef CUDA_UNSUPPORTED
}

}  // namespace parity
