// Lists the variables of a module: its __device__ and __constant__ variables, also static ones, those inside
// functions, and the tables that compilers make. A migration copies their contents, including those that the
// program never asked for. Reads the whole code, so it runs when a session migrates and not at each load. The
// bytes may be hostile: nothing outside them is read, and the result is limited. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "protocol/driver/cuda_header.h"
#include "protocol/images/fatbin.h"

namespace gpupool::cuda {

// Limits of one image. Each variable takes about 100 bytes here, and less than 4 in PTX. Libraries of NVIDIA
// have some thousands of variables with names of up to a few hundred bytes.
constexpr size_t kMaxModuleVariables = size_t{1} << 18;
constexpr uint64_t kMaxVariableNameBytes = uint64_t{64} << 20;  // of all names, each with its NUL

struct ModuleVariable {
  bool constant = false;  // in constant memory
  bool managed = false;   // its memory is accessible to the host
  // The code has several variables of this name, so the driver finds only one of them by it. Not set for
  // read-only data made by the compiler, such as string literals, which linked files often repeat.
  bool repeated = false;
  bool operator==(const ModuleVariable&) const = default;
};

struct ModuleVariables {
  // By the name for cuModuleGetGlobal and cuLibraryGetGlobal. Drivers rename variables that PTX declares
  // inside functions, and do not find those by this name; compilers of CUDA C++ declare none there.
  std::map<std::string, ModuleVariable, std::less<>> by_name;
  // The code names functions that allocate device memory in kernels (malloc, new, cudaMalloc of the device
  // runtime), which no driver call can list or copy.
  bool uses_heap = false;
};

// Lists the variables in the code that this device loads from the bundle that Images::load_module() and
// load_library() get (server/worker/images). Variables that are only declared (.extern), and references of
// textures, surfaces and samplers, are not listed.
// NO_BINARY_FOR_GPU: the bundle has no code for the device, so a library without variables. INVALID_IMAGE,
// INVALID_PTX: broken code, or more than the limits. OUT_OF_MEMORY: decompressing failed. After an error,
// `found` is incomplete.
CUresult variables_of_bundle(ByteSpan bundle, const CodeTarget& target, ModuleVariables& found);

// The same for one unpacked entry of an image.
CUresult variables_of_code(CodeKind kind, ByteSpan code, ModuleVariables& found);

}  // namespace gpupool::cuda
