// Bodies of the commands about code: images, modules, libraries, linkers, functions and globals. Conventions
// as in commands.h.
#pragma once
#include <array>
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// upload_part: a part of a module image, as a bundle (protocol/images/fatbin.h), follows. Parts come in
// order; the load that names the upload consumes it.
struct UploadPart {
  uint64_t upload;
  uint64_t total;  // bytes of the whole image, the same in every part
};
// load_module, load_library: the image is the upload or, if that is 0, an image that the server keeps, named
// by the ImageName that follows. JitOptions follow, up to the end of the body. Reply: text with the JIT's
// error log, the JIT's time in milliseconds (float), and text with its info log unless it is empty.
// kImageMissing with an empty body: the server has no such image, or the proof is wrong; the client then
// uploads the image and loads again.
struct LoadImage {
  uint64_t handle;  // new module or library
  uint64_t upload;
};
constexpr int32_t kImageMissing = 301;  // CUDA_ERROR_FILE_NOT_FOUND
using ImageDigest = std::array<uint8_t, 32>;
struct ImageName {     // see protocol/images/name.h
  uint64_t size;       // of the bundle, at most HelloReply.largest_image
  ImageDigest digest;  // SHA-256 of the bundle
  ImageDigest proof;   // SHA-256 of HelloReply.image_nonce and the bundle
};
// get_function, get_kernel: name (text) follows. Reply: FunctionInfo.
struct GetFunction {
  uint64_t handle;  // new function or kernel
  uint64_t owner;   // module or library
};
// kernel_names: asks for the kernels of a module or library. Reply: KernelNames.
struct GetKernelNames {
  uint64_t owner;  // module or library
  uint64_t first;  // number of the first wanted name, in the server's order
};
// Names from `first` on follow, each with its NUL: those that fit kMaxNamesBytes, but at least one if there
// are any.
struct KernelNames {
  uint64_t count;  // of all names
};
constexpr uint32_t kMaxNamesBytes = 256 * 1024;
// create_linker: option_count JitOptions follow. The linker belongs to the current context. Reply: empty.
struct CreateLinker {
  uint64_t linker;  // new
  uint64_t option_count;
};
struct JitOption {  // an option with a numeric value; logs travel in replies
  uint32_t option;  // CUjit_option
  uint32_t reserved;
  uint64_t value;  // as the program passes it
};
constexpr uint32_t kMaxJitOptions = 64;
// True for the options that may be sent: their values are numbers, not pointers.
constexpr bool is_numeric_jit_option(uint32_t option) {
  return option <= 1 || (option >= 7 && option <= 16) || (option >= 20 && option <= 24) ||
         (option >= 29 && option <= 34);
}
// add_link_input: option_count JitOptions and the input's name (text) follow. Reply: text with the linker's
// log.
struct AddLinkInput {
  uint64_t linker;
  uint64_t upload;  // has the input's bytes, unchanged
  uint32_t type;    // CUjitInputType
  uint32_t option_count;
};
// complete_link: links the inputs. Reply: LinkedImage, then text with the linker's log.
struct CompleteLink {
  uint64_t linker;
};
struct LinkedImage {
  uint64_t size;  // 0: linking failed
};
// linked_image: fetches a part of a linked image. Reply: kMaxImagePartBytes bytes from `offset` on, or as
// many as are left.
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
  uint64_t handle;  // new function
  uint64_t kernel;
};
constexpr uint32_t kFunctionAttributes = 16;  // CU_FUNC_ATTRIBUTE_* 0..15
constexpr uint32_t kMaxParameters = 4096;     // more than fit the 32764 bytes that CUDA allows a kernel
struct FunctionInfo {                         // parameter_count ParameterInfos follow
  int32_t attributes[kFunctionAttributes];
  uint32_t parameter_count;
  uint32_t reserved;
};
struct ParameterInfo {
  uint32_t offset;
  uint32_t size;
};
// get_global: the name (text) follows. Without a context only managed variables of libraries are found.
// Reply: GlobalInfo.
struct GetGlobal {
  uint64_t owner;  // module or library
};
struct GlobalInfo {
  uint64_t address;
  uint64_t size;
  uint32_t managed;  // 1: managed memory, at the same address on the host
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
