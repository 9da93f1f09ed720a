// The rows of functions.def other than NVML_FUNCTION. They do not read their arguments, so all have the same
// signature.
#include "protocol/nvml/library.h"

namespace {

nvmlReturn_t refuse(nvmlReturn_t result) {
  return gpupool::nvml::Library::get().with_library([result](auto&) { return result; });
}

}  // namespace

#define NVML_FUNCTION(name)
#define NVML_NOT_SUPPORTED(name)             \
  NVML_EXPORT nvmlReturn_t name() {          \
    return refuse(NVML_ERROR_NOT_SUPPORTED); \
  }
#define NVML_CHANGES(name)                   \
  NVML_EXPORT nvmlReturn_t name() {          \
    return refuse(NVML_ERROR_NO_PERMISSION); \
  }
#include "protocol/nvml/functions.def"
