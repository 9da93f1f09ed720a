// Decodes a server's replies about code and shared memory. The server is not trusted: each function checks the whole reply before the client uses it.
// No state, any thread. False: the reply is malformed; the output arguments may then be partly filled.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/wire/images.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

// get_function, get_kernel.
struct KernelDescription {
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;  // of all of them
  int32_t attributes[wire::kFunctionAttributes] = {};
};
bool read_kernel_description(std::span<const std::byte> reply, KernelDescription* description);

// One reply to kernel_names: appends its names to those of the replies before it. *complete: these are all.
bool read_kernel_names(std::span<const std::byte> reply, std::vector<std::string>* names, bool* complete);

// get_global: a variable that ends where addresses do, or before.
bool read_global(std::span<const std::byte> reply, wire::GlobalInfo* info);

// export_memory, export_event.
bool read_shared_name(std::span<const std::byte> reply, wire::SharedName* name);
// import_memory.
bool read_imported_memory(std::span<const std::byte> reply, wire::ImportedMemory* memory);

// True for bytes that a program carries between processes and that are a name of this kind (SharedKind); a program may pass any.
bool is_shared_name(const wire::SharedName& name, uint32_t kind);

}  // namespace gpupool::client
