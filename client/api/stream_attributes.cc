// Stream attributes: stored by the server. The priority is also stored here, where queries are answered.
#include "client/streams/stream.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Returns null for a special stream, which has no stored priority.
Stream* known(CUstream stream) {
  return handles().find_as<Stream>(Kind::stream, cuda::handle_bits(stream));
}

CUresult set(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  const CUresult result = rows::cuStreamSetAttribute::forward(stream, attribute, value);
  if (result != CUDA_SUCCESS || attribute != CU_LAUNCH_ATTRIBUTE_PRIORITY) return result;
  Stream* const about = known(stream);
  auto* const context = about ? handles().find_as<Context>(Kind::context, about->context) : nullptr;
  int priority = value->priority;
  if (context && clamp_priority(*context, &priority) == CUDA_SUCCESS) about->priority = priority;
  return result;
}

CUresult copy(CUstream to, CUstream from) {
  const CUresult result = rows::cuStreamCopyAttributes::forward(to, from);
  if (result != CUDA_SUCCESS) return result;
  Stream* const target = known(to);
  const Stream* const source = known(from);
  if (target) target->priority = source ? source->priority.load() : 0;
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
                                          const CUstreamAttrValue* value) {
  return set(stream, attribute, value);
}
CUDA_EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute,
                                               const CUstreamAttrValue* value) {
  return set(or_per_thread(stream), attribute, value);
}

CUDA_EXPORT CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute,
                                          CUstreamAttrValue* value) {
  return rows::cuStreamGetAttribute::forward(stream, attribute, value);
}
CUDA_EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute,
                                               CUstreamAttrValue* value) {
  return rows::cuStreamGetAttribute::forward(or_per_thread(stream), attribute, value);
}

CUDA_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  return copy(to, from);
}
CUDA_EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from) {
  return copy(or_per_thread(to), or_per_thread(from));
}
