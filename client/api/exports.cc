// Defines the rows of protocol/calls/calls.def as exported symbols of libcuda.so.1.
//
// The other rows that need no code are exported by the file that has their common body
// (protocol/calls/calls.def). Hand-written calls define their symbols in client/api/; the remaining symbols
// return CUDA_ERROR_NOT_SUPPORTED (protocol/driver/exports.S).
#include "client/session/call.h"
#include "protocol/driver/export_function.h"

namespace rows = gpupool::client::rows;

#define CUDA_CALL(id, name, mode, ...) GPUPOOL_EXPORT_FUNCTION(name, rows::name::forward)
#define CUDA_CALL_CUSTOM_EXPORT(id, name, mode, ...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
