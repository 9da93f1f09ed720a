#include "protocol/calls/errors.h"

namespace gpupool::cuda {

const char* error_name(int code) {
  switch (code) {
#define CUDA_ERROR(name, number, text) \
  case number: return #name;
#include "protocol/calls/errors.def"
#undef CUDA_ERROR
  }
  return nullptr;
}

const char* error_description(int code) {
  switch (code) {
#define CUDA_ERROR(name, number, text) \
  case number: return text;
#include "protocol/calls/errors.def"
#undef CUDA_ERROR
  }
  return nullptr;
}

bool is_sticky(int code) {
  switch (code) {
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
    case 226:  // CUDA_ERROR_CONTAINED
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
    case 810:  // CUDA_ERROR_MPS_CLIENT_TERMINATED
    case 911:  // CUDA_ERROR_EXTERNAL_DEVICE
      return true;
    default: return false;
  }
}

}  // namespace gpupool::cuda
