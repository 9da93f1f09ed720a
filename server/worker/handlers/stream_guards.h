// Wrappers for the rows of streams and events (guards.h). Executor's thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::worker::guards {

CUresult wait_value32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult wait_value64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags);
CUresult set_stream_attribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value);
CUresult create_stream(CUstream* stream, unsigned flags);
CUresult create_stream_with_priority(CUstream* stream, unsigned flags, int priority);
CUresult destroy_stream(CUstream stream);
CUresult query_stream(CUstream stream);
CUresult create_event(CUevent* event, unsigned flags);
CUresult record_event(CUevent event, CUstream stream);
CUresult record_event_with_flags(CUevent event, CUstream stream, unsigned flags);
CUresult wait_event(CUstream stream, CUevent event, unsigned flags);
CUresult query_event(CUevent event);
CUresult destroy_event(CUevent event);

}  // namespace gpupool::worker::guards
