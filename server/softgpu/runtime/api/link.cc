// The linker: joins PTX files.
#include <cstring>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/jit_options.h"
#include "server/softgpu/runtime/api/linked_image.h"
#include "server/softgpu/runtime/image.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

constexpr char kMagic[8] = {'S', 'G', 'L', 'I', 'N', 'K', '0', '1'};

class Linker final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::linker;
  Linker(unsigned count, CUjit_option* options, void** values) : options(count, options, values) {}

  const JitOptions options;  // of the program, which keeps them until the linker is destroyed
  std::mutex mutex;          // guards the rest
  std::vector<std::string> texts;
  std::string image;
};

CUresult add(Linker& linker, const Device& device, CUjitInputType type, const void* data, size_t size) {
  std::lock_guard guard(linker.mutex);
  switch (type) {
    case CU_JIT_INPUT_PTX: {
      const auto* text = static_cast<const char*>(data);
      linker.texts.emplace_back(text, strnlen(text, size));
      return CUDA_SUCCESS;
    }
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_CUBIN: {
      gpupool::cuda::ImageSpans spans;
      spans.image = {static_cast<const std::byte*>(data), size};
      std::string message;
      const CUresult result = unpack_image(spans, device, &linker.texts, &message);
      linker.options.report(message);
      return result;
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult create(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
  return call_in_context([&](Context& context) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Linker> linker = make_ref<Linker>(count, options, values);
    if (!linker->options.valid()) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t handle = runtime().handles().add(linker);
    if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    context.root().adopt(handle);
    *state = make_handle<CUlinkState>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult add_data(CUlinkState state, CUjitInputType type, const void* data, size_t size) {
  return call_in_context([&](Context& context) {
    const Ref<Linker> linker = find<Linker>(state);
    if (!linker) return CUDA_ERROR_INVALID_HANDLE;
    if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return add(*linker, context.device(), type, data, size);
  });
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path) {
  return call([&] {
    std::string content;
    const CUresult result = read_file(path, &content);
    return result != CUDA_SUCCESS ? result : add_data(state, type, content.c_str(), content.size() + 1);
  });
}

}  // namespace

namespace gpupool::softgpu::api {

// magic, u64 count, then per text u64 size and its bytes.
std::string make_linked_image(const std::vector<std::string>& texts) {
  if (texts.size() == 1) return texts.front();
  std::string image(kMagic, sizeof kMagic);
  const auto put = [&](uint64_t number) {
    image.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  put(texts.size());
  for (const std::string& text : texts) {
    put(text.size());
    image += text;
  }
  return image;
}

CUresult load_any_image(const void* image, const Device& device, std::shared_ptr<const Program>* program,
                        std::string* message) {
  if (std::strncmp(static_cast<const char*>(image), kMagic, sizeof kMagic) != 0) {
    return load_image(image, device, program, message);
  }
  const char* next = static_cast<const char*>(image) + sizeof kMagic;
  const auto take = [&] {
    uint64_t number;
    std::memcpy(&number, next, sizeof number);
    next += sizeof number;
    return number;
  };
  std::vector<std::string_view> texts;
  for (uint64_t left = take(); left != 0; --left) {
    const uint64_t size = take();
    texts.emplace_back(next, size);
    next += size;
  }
  return load_texts(texts, device, program, message);
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                                     CUlinkState* state) {
  return create(count, options, values, state);
}
CUDA_EXPORT CUresult cuLinkCreate(unsigned int count, CUjit_option* options, void** values,
                                  CUlinkState* state) {
  return create(count, options, values, state);
}
CUDA_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                      const char*, unsigned int, CUjit_option*, void**) {
  return add_data(state, type, data, size);
}
CUDA_EXPORT CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                   const char*, unsigned int, CUjit_option*, void**) {
  return add_data(state, type, data, size);
}
CUDA_EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                                      CUjit_option*, void**) {
  return add_file(state, type, path);
}
CUDA_EXPORT CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
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
    // Compiled here, so that mistakes are told by the linker; loading the image finds the program in the
    // cache.
    const std::vector<std::string_view> views(linker->texts.begin(), linker->texts.end());
    std::shared_ptr<const Program> program;
    std::string message;
    const CUresult result = load_texts(views, context.device(), &program, &message);
    linker->options.report(message);
    if (result != CUDA_SUCCESS) return result;
    linker->image = make_linked_image(linker->texts);
    *image = linker->image.data();
    if (size != nullptr) *size = linker->image.size() + 1;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLinkDestroy(CUlinkState state) {
  return call([&] {
    return runtime().handles().remove<Linker>(handle_value(state)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}
