// Calls functions that the pool does not support (protocol/driver/unsupported.def) with all arguments zero;
// softgpu does not support them either.
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
#include "protocol/driver/unsupported.def"
#undef CUDA_UNSUPPORTED
}

}  // namespace parity
