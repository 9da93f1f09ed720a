#include "protocol/cuda/errors.h"

namespace gpupool::cuda {

const char* error_name(int code) {
  switch (code) {
#define CUDA_ERROR(name, number, text) \
  case number:                         \
    return #name;
#include "protocol/cuda/errors.def"
#undef CUDA_ERROR
  }
  return nullptr;
}

const char* error_description(int code) {
  switch (code) {
#define CUDA_ERROR(name, number, text) \
  case number:                         \
    return text;
#include "protocol/cuda/errors.def"
#undef CUDA_ERROR
  }
  return nullptr;
}

}  // namespace gpupool::cuda
