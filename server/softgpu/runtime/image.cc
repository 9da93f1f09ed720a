#include "server/softgpu/runtime/image.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

#include "protocol/images/linked_cubin.h"
#include "server/softgpu/ptx/parser.h"
#include "server/softgpu/runtime/cubin_stubs.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/program_cache.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

CUresult code_of(CompileErrorCode code) {
  switch (code) {
    case CompileErrorCode::invalid_ptx: return CUDA_ERROR_INVALID_PTX;
    case CompileErrorCode::unsupported_ptx_version: return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    case CompileErrorCode::unresolved_symbol: return CUDA_ERROR_INVALID_IMAGE;
    case CompileErrorCode::internal: break;
  }
  return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

long milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<long>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin)
          .count());
}

// Returns PTX with empty kernels in place of the image's machine code for the device; empty if it has none.
std::string stub_for_machine_code(const cuda::Image& image, const Device& device) {
  const cuda::ImageEntry* const cubin =
      cuda::select_entry(image.entries, {device.capability_major(), device.capability_minor(), false});
  cuda::Bytes bytes;
  if (cubin == nullptr || cubin->kind != cuda::CodeKind::elf ||
      cuda::unpack_entry(*cubin, bytes) != CUDA_SUCCESS)
    return {};
  static std::once_flag said;
  std::call_once(said, [] {
    fputs(
        "softgpu: SOFTGPU_SKIP_MACHINE_CODE=1: kernels that have machine code DO NOTHING; their results are "
        "missing\n",
        stderr);
  });
  return stub_ptx_of_cubin(bytes.view(), cubin->arch);
}

// NVIDIA's driver compiles an image only if it has no machine code for the device.
bool has_machine_code(const cuda::ImageSpans& spans, const Device& device) {
  cuda::Image image;
  if (cuda::parse_image(spans, image) != CUDA_SUCCESS) return false;
  const cuda::ImageEntry* const entry =
      cuda::select_entry(image.entries, {device.capability_major(), device.capability_minor(), false});
  return entry != nullptr && entry->kind == cuda::CodeKind::elf;
}

void charge_load(const cuda::ImageSpans& spans, const Device& device,
                 std::span<const std::string_view> texts) {
  if (!costs().on()) [[likely]]
    return;
  costs().charge(Cost::module_load, Cost::module_load_mib, spans.image.size());
  if (!has_machine_code(spans, device)) charge_jit(texts);
}

}  // namespace

void charge_jit(std::span<const std::string_view> texts) {
  uint64_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  costs().charge(Cost::jit, Cost::jit_mib, bytes);
}

CUresult load_texts(std::span<const std::string_view> texts, const Device& device,
                    std::shared_ptr<const Program>* program, std::string* message) {
  CompileOptions options;
  options.compute_capability = device.compute_capability();
  options.converge_warps = runtime().config().converge_warps;
  options.code_file = runtime().code_file();
  const auto begin = std::chrono::steady_clock::now();
  auto outcome = runtime().programs().get(texts, options);
  if (auto* compiled = std::get_if<std::shared_ptr<const Program>>(&outcome)) {
    *program = std::move(*compiled);
    if (runtime().config().log) {
      size_t bytes = 0;
      for (const std::string_view text : texts) bytes += text.size();
      runtime().log("loaded module: " + std::to_string(bytes) + " bytes of PTX, " +
                    std::to_string((*program)->kernels().size()) + " kernels, " +
                    std::to_string(milliseconds_since(begin)) + " ms");
    }
    return CUDA_SUCCESS;
  }
  const CompileError& error = std::get<CompileError>(outcome);
  *message = error.message;
  return code_of(error.code);
}

CUresult unpack_image(const cuda::ImageSpans& spans, const Device& device, std::vector<std::string>* texts,
                      std::string* message) {
  cuda::Image image;
  CUresult result = cuda::parse_image(spans, image);
  if (result == CUDA_SUCCESS && image.linked.empty()) {
    // An image made by cuLinkComplete holds PTX texts.
    const cuda::ImageEntry* const cubin =
        cuda::select_entry(image.entries, {device.capability_major(), device.capability_minor(), false});
    if (cubin != nullptr && cubin->kind == cuda::CodeKind::elf && cubin->record.empty()) {
      const auto linked = cuda::texts_of_linked_cubin(cubin->payload);
      texts->assign(linked.begin(), linked.end());
      if (!texts->empty()) return CUDA_SUCCESS;
    }
  }
  if (result == CUDA_SUCCESS && skips_machine_code()) {
    // A GPU prefers machine code to PTX.
    std::string text = stub_for_machine_code(image, device);
    if (!text.empty()) {
      texts->push_back(std::move(text));
      return CUDA_SUCCESS;
    }
  }
  const cuda::CodeTarget target{device.capability_major(), device.capability_minor(), true};
  cuda::CodeSelection selection;
  if (result == CUDA_SUCCESS && image.linked.empty() && image.entries.size() == 1 &&
      image.entries[0].kind == cuda::CodeKind::ptx && image.entries[0].record.empty()) {
    // Plain PTX: there is nothing to select, and the compiler reports what is wrong with it.
    selection.entries.push_back(&image.entries[0]);
  } else if (result == CUDA_SUCCESS) {
    result = cuda::select_code(image, target, selection);
  }
  if (result != CUDA_SUCCESS) {
    *message = result == CUDA_ERROR_NO_BINARY_FOR_GPU ? cuda::why_nothing_fits(image, target)
                                                      : "invalid image: neither fat binary, cubin nor PTX";
    return result;
  }
  for (const cuda::ImageEntry* entry : selection.entries) {
    cuda::Bytes bytes;
    if (result = cuda::unpack_entry(*entry, bytes); result != CUDA_SUCCESS) {
      *message = "invalid image: cannot decompress its code";
      return result;
    }
    texts->emplace_back(bytes.text());
  }
  return CUDA_SUCCESS;
}

void limit_registers(uint32_t max_registers, std::vector<std::string>* texts) {
  if (max_registers == 0) return;
  for (std::string& text : *texts) {
    text.resize(::strnlen(text.data(), text.size()));
    text += ptx::register_limit_pragma(max_registers);
  }
}

CUresult load_image(const void* image, const Device& device, uint32_t max_registers,
                    std::shared_ptr<const Program>* program, std::string* message) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  cuda::ImageSpans spans;
  if (const CUresult result = cuda::locate_image(image, spans); result != CUDA_SUCCESS) {
    *message = "invalid image: neither fat binary, cubin nor PTX";
    return result;
  }
  std::vector<std::string> texts;
  CUresult result = unpack_image(spans, device, &texts, message);
  if (result != CUDA_SUCCESS) return result;
  limit_registers(max_registers, &texts);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  result = load_texts(views, device, program, message);
  if (result == CUDA_SUCCESS) charge_load(spans, device, views);
  return result;
}

CUresult read_file(const char* path, std::string* content) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
