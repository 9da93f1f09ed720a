// Names and texts of CUresult codes, for cuGetErrorName, cuGetErrorString and log lines. Constant data, any thread.
#pragma once

namespace gpupool::cuda {

const char* error_name(int code);         // "CUDA_ERROR_INVALID_VALUE"; null: no such code
const char* error_description(int code);  // "invalid argument"; null: no such code

}  // namespace gpupool::cuda
