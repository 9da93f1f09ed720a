// Bodies of the commands about code: images, modules, libraries, linkers, functions and their globals. As in commands.h.
#pragma once
#include <array>
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// upload_part: bytes of a module image, as a bundle (protocol/cuda/fatbin.h), follow. Parts come in order; an upload is
// consumed by the load that names it.
struct UploadPart {
  uint64_t upload;
  uint64_t total;       // whole size, the same in every part
};
// load_module, load_library: the image is the upload or, where that is 0, one that the server has by the ImageName that follows. Then
// JitOptions, as many as there are. Reply: text with the JIT's log (may be empty), and the milliseconds that it took (float). An empty body
// and kImageMissing: the server has no such image, or the proof is wrong; upload the image and load again.
struct LoadImage {
  uint64_t handle;      // new module or library
  uint64_t upload;
};
constexpr int32_t kImageMissing = 301;  // CUDA_ERROR_FILE_NOT_FOUND
using ImageDigest = std::array<uint8_t, 32>;
struct ImageName {      // see protocol/image/name.h
  uint64_t size;        // of the bundle, at most HelloReply.largest_image
  ImageDigest digest;   // SHA-256 of the bundle
  ImageDigest proof;    // SHA-256 of HelloReply.image_nonce and the bundle
};
// get_function, get_kernel: name (text) follows. Reply: FunctionInfo.
struct GetFunction {
  uint64_t handle;      // new function or kernel
  uint64_t owner;       // module or library
};
// kernel_names: what a module or library has. Reply: KernelNames.
struct GetKernelNames {
  uint64_t owner;       // module or library
  uint64_t first;       // of the names, in the server's order
};
struct KernelNames {    // then as many names from `first` on as fit kMaxNamesBytes, at least one if there is one, each with its NUL
  uint64_t count;       // of all
};
constexpr uint32_t kMaxNamesBytes = 256 * 1024;
// create_linker: then option_count times JitOption. The linker belongs to the current context. Reply: empty.
struct CreateLinker {
  uint64_t linker;      // new
  uint64_t option_count;
};
struct JitOption {      // one whose value is a number; logs travel in replies
  uint32_t option;      // CUjit_option
  uint32_t reserved;
  uint64_t value;       // as the program passes it
};
constexpr uint32_t kMaxJitOptions = 64;
// True for the options that may travel.
constexpr bool is_numeric_jit_option(uint32_t option) {
  return option <= 1 || (option >= 7 && option <= 16) || (option >= 20 && option <= 24) || (option >= 29 && option <= 34);
}
// add_link_input: then option_count times JitOption and the input's name (text). Reply: text with the linker's log.
struct AddLinkInput {
  uint64_t linker;
  uint64_t upload;      // the input's bytes, as they are
  uint32_t type;        // CUjitInputType
  uint32_t option_count;
};
// complete_link: Reply: LinkedImage, text with the linker's log.
struct CompleteLink {
  uint64_t linker;
};
struct LinkedImage {
  uint64_t size;        // 0: it failed
};
// linked_image: a part of what a completed linker made. Reply: its bytes, kMaxImagePartBytes of them where there are as many.
struct GetLinkedImage {
  uint64_t linker;
  uint64_t offset;
};
constexpr uint32_t kMaxImagePartBytes = 1u << 20;
struct DestroyLinker {
  uint64_t linker;
};
// kernel_function: the function of a kernel in the current context (cuKernelGetFunction). Reply: empty.
struct KernelFunction {
  uint64_t handle;      // new function
  uint64_t kernel;
};
constexpr uint32_t kFunctionAttributes = 16;  // CU_FUNC_ATTRIBUTE_* 0..15
constexpr uint32_t kMaxParameters = 4096;     // more than fit the 32764 bytes that CUDA allows a kernel
struct FunctionInfo {   // then parameter_count times ParameterInfo
  int32_t attributes[kFunctionAttributes];
  uint32_t parameter_count;
  uint32_t reserved;
};
struct ParameterInfo {
  uint32_t offset;
  uint32_t size;
};
// get_global: name (text) follows. Without a context only a library's managed variables are found. Reply: GlobalInfo.
struct GetGlobal {
  uint64_t owner;       // module or library
};
struct GlobalInfo {
  uint64_t address;
  uint64_t size;
  uint32_t managed;     // 1: the host uses it at the same address
  uint32_t reserved;
};

static_assert(kIsBody<UploadPart, 16>);
static_assert(kIsBody<LoadImage, 16>);
static_assert(kIsBody<ImageName, 72>);
static_assert(kIsBody<GetFunction, 16>);
static_assert(kIsBody<KernelFunction, 16>);
static_assert(kIsBody<FunctionInfo, 72>);
static_assert(kIsBody<GlobalInfo, 24>);

}  // namespace gpupool::wire
