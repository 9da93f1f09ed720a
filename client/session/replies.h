// Decodes a server's replies about code and shared memory. The server is not trusted: each function validates
// the whole reply. Returns false if the reply is malformed; output arguments may then be partly filled.
// Stateless, any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/wire/images.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

// For get_function and get_kernel.
struct KernelDescription {
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;  // total size
  int32_t attributes[wire::kFunctionAttributes] = {};
};
bool read_kernel_description(std::span<const std::byte> reply, KernelDescription* description);

// For kernel_names: appends the names of one reply. *complete: no more names follow.
bool read_kernel_names(std::span<const std::byte> reply, std::vector<std::string>* names, bool* complete);

// For get_global. The variable must end within the address space.
bool read_global(std::span<const std::byte> reply, wire::GlobalInfo* info);

// For export_memory and export_event.
bool read_shared_name(std::span<const std::byte> reply, wire::SharedName* name);
// For import_memory.
bool read_imported_memory(std::span<const std::byte> reply, wire::ImportedMemory* memory);

// True if these bytes are a name of this kind (SharedKind). They come from the program, which may pass
// anything.
bool is_shared_name(const wire::SharedName& name, uint32_t kind);

}  // namespace gpupool::client
