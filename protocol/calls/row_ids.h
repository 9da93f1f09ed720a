// The ids of the call table's rows by name, for code that treats single rows in a special way:
// row_id::cuEventRecord. Constants only.
#pragma once
#include <cstdint>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda::row_id {

#define CUDA_CALL(id, name, ...) inline constexpr uint16_t name = id;
#define CUDA_CALL_CUSTOM_EXPORT(...) CUDA_CALL(__VA_ARGS__)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND

}  // namespace gpupool::cuda::row_id
