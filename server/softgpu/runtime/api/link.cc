// cuLink...: joins PTX texts. cuLinkComplete compiles them; when its result is loaded, the program cache has
// the program.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "protocol/images/linked_cubin.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/jit_options.h"
#include "server/softgpu/runtime/host_object.h"
#include "server/softgpu/runtime/image.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

using gpupool::cuda::ByteSpan;

class Linker final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::linker;
  Linker(unsigned count, CUjit_option* options, void** values) : options(count, options, values) {}

  const JitOptions options;  // the program must keep its arrays until the linker is destroyed
  std::mutex mutex;          // guards texts and image
  std::vector<std::string> texts;
  std::string image;
};

// `may_lack_code`: for parts of archives, ignores an image without code for the device, as in NVIDIA's device
// runtime. cuLinkComplete reports symbols that stay undefined.
CUresult add_image(Linker& linker, const Device& device, ByteSpan bytes, bool may_lack_code = false) {
  gpupool::cuda::ImageSpans spans;
  spans.image = bytes;
  std::string message;
  std::vector<std::string> texts;
  const CUresult result = unpack_image(spans, device, &texts, &message);
  if (may_lack_code && result == CUDA_ERROR_NO_BINARY_FOR_GPU) return CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    linker.options.report_failure(message);
    return result;
  }
  linker.options.report_success();
  if (linker.texts.size() + texts.size() > gpupool::cuda::kMaxLinkedTexts) return CUDA_ERROR_INVALID_VALUE;
  std::move(texts.begin(), texts.end(), std::back_inserter(linker.texts));
  return CUDA_SUCCESS;
}

CUresult add(Linker& linker, const Device& device, CUjitInputType type, const void* data, size_t size) {
  std::lock_guard guard(linker.mutex);
  switch (type) {
    case CU_JIT_INPUT_PTX: {
      if (linker.texts.size() >= gpupool::cuda::kMaxLinkedTexts) return CUDA_ERROR_INVALID_VALUE;
      linker.texts.emplace_back(static_cast<const char*>(data), size);
      return CUDA_SUCCESS;
    }
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY: {
      const ByteSpan bytes{static_cast<const std::byte*>(data), size};
      const auto parts = fat_binaries_of(bytes);
      if (parts.empty() && !is_archive(bytes)) return add_image(linker, device, bytes);
      for (const ByteSpan part : parts)
        if (const CUresult result = add_image(linker, device, part, true); result != CUDA_SUCCESS)
          return result;
      return CUDA_SUCCESS;
    }
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_CUBIN: return add_image(linker, device, {static_cast<const std::byte*>(data), size});
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult create(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
  return call_in_context([&](Context& context) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Linker> linker = make_ref<Linker>(count, options, values);
    if (const CUresult result = linker->options.check(); result != CUDA_SUCCESS) return result;
    const uint64_t handle = runtime().handles().add(linker);
    if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    context.root().add_child(handle);
    *state = make_handle<CUlinkState>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult add_data(CUlinkState state, CUjitInputType type, const void* data, size_t size) {
  return call_in_context([&](Context& context) {
    const Ref<Linker> linker = find<Linker>(state);
    if (!linker) return CUDA_ERROR_INVALID_HANDLE;
    if (data && type == CU_JIT_INPUT_PTX) size = strnlen(static_cast<const char*>(data), size);
    if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return add(*linker, context.device(), type, data, size);
  });
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path) {
  return call([&] {
    std::string content;
    const CUresult result = read_file(path, &content);
    return result != CUDA_SUCCESS ? result : add_data(state, type, content.data(), content.size());
  });
}

}  // namespace

CUDA_EXPORT CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                                     CUlinkState* state) {
  return create(count, options, values, state);
}
CUDA_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                      const char*, unsigned int, CUjit_option*, void**) {
  return add_data(state, type, data, size);
}
CUDA_EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                                      CUjit_option*, void**) {
  return add_file(state, type, path);
}

CUDA_EXPORT CUresult cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  return call_in_context([&](Context& context) {
    const Ref<Linker> linker = find<Linker>(state);
    if (!linker) return CUDA_ERROR_INVALID_HANDLE;
    if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(linker->mutex);
    if (linker->texts.empty()) return CUDA_ERROR_INVALID_VALUE;
    // Compile here, so that the linker reports errors. Loading the image finds the program in the cache.
    limit_registers(linker->options.max_registers(), &linker->texts);
    const std::vector<std::string_view> views(linker->texts.begin(), linker->texts.end());
    std::shared_ptr<const Program> program;
    std::string message;
    const CUresult result = load_texts(views, context.device(), &program, &message);
    if (result != CUDA_SUCCESS) {
      linker->options.report_failure(message);
      return result;
    }
    charge_jit(views);
    linker->options.report_success(*program);
    const Device& device = context.device();
    linker->image = gpupool::cuda::make_linked_cubin(
        linker->texts, static_cast<uint32_t>(10 * device.capability_major() + device.capability_minor()));
    *image = linker->image.data();
    if (size != nullptr) *size = linker->image.size();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLinkDestroy(CUlinkState state) {
  return call([&] {
    return runtime().handles().remove<Linker>(handle_value(state)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}
