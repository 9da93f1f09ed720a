// Defines the calls that are answered here (CUDA_ANSWER and CUDA_CHECK of calls.def) as exported symbols.
#include "client/api/answer.h"
#include "client/api/subjects.h"
#include "protocol/driver/export_function.h"

using namespace gpupool::client;

#define CUDA_ANSWER(name, subject, property) \
  GPUPOOL_EXPORT_FUNCTION(name,              \
                          Answer<decltype(&::name), subjects::subject, &subjects::subject::property>::call)
#define CUDA_ANSWER_ON_STREAM(name, property) \
  CUDA_ANSWER(name, stream, property)         \
  GPUPOOL_EXPORT_FUNCTION(                    \
      name##_ptsz,                            \
      Answer<decltype(&::name), subjects::stream, &subjects::stream::property>::call_per_thread)
#define CUDA_CHECK(name, subject, result) \
  GPUPOOL_EXPORT_FUNCTION(name, Check<decltype(&::name), subjects::subject, result>::call)

#define CUDA_CALL(...)
#define CUDA_CALL_CUSTOM_EXPORT(...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
