// Names and texts of CUresult codes, for cuGetErrorName, cuGetErrorString and logs, and which codes are
// sticky. Constant data, any thread.
#pragma once

namespace gpupool::cuda {

const char* error_name(int code);         // "CUDA_ERROR_INVALID_VALUE"; null: no such code
const char* error_description(int code);  // "invalid argument"; null: no such code

// True if cuda.h says that any further work in the process or context fails after this error.
bool is_sticky(int code);

}  // namespace gpupool::cuda
