// Bodies of the commands that share memory and events between processes of a tenant. Conventions as in
// commands.h.
#pragma once
#include <array>
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// Names an object that a session shares with other sessions of its tenant. Programs pass it between processes
// as one of CUDA's opaque handles, or in a file.
struct SharedName {
  uint32_t magic;    // kSharedName
  uint32_t kind;     // which of CUDA's handles it is; for clients only
  uint64_t server;   // HelloReply.server_id
  uint64_t session;  // the exporting session
  std::array<uint8_t, 16> secret;
  uint64_t offset;  // bytes; of the allocation in the memory
  uint64_t size;    // bytes of the allocation; for clients only
  uint64_t reserved;
};
constexpr uint32_t kSharedName = 0x52414853;  // "SHAR"
// export_memory: exports memory that the client has created (cuMemCreate), or the memory that map_memory has
// mapped at an address. Reply: SharedName, with the address's offset; the same name until the memory is
// released. export_event: exports an interprocess event. Reply: SharedName.
struct ExportMemory {
  uint64_t memory;  // 0: `address` names the memory
  uint64_t address;
};
struct ExportEvent {
  uint64_t event;
};
// import_memory: makes a handle, as cuMemCreate does, of the memory that the name refers to. Reply:
// ImportedMemory. CUDA_ERROR_INVALID_VALUE: this tenant shares nothing under this name.
constexpr uint32_t kRejectOwnMemory = 1;  // refuses this session's own memory with CUDA_ERROR_INVALID_CONTEXT
struct ImportMemory {
  uint64_t memory;  // new
  SharedName name;
  uint32_t flags;
  uint32_t reserved;
};
struct ImportedMemory {
  uint64_t size;
  uint64_t handle_types;  // CUmemAllocationHandleType, as requested when it was created
  int32_t device;         // kNoDevice: a multicast object
  uint32_t reserved;
};
constexpr int32_t kNoDevice = -1;
struct ImportEvent {
  uint64_t event;  // new
  SharedName name;
};

static_assert(kIsBody<SharedName, 64>);
static_assert(kIsBody<ExportMemory, 16>);
static_assert(kIsBody<ExportEvent, 8>);
static_assert(kIsBody<ImportMemory, 80>);
static_assert(kIsBody<ImportedMemory, 24>);
static_assert(kIsBody<ImportEvent, 72>);

}  // namespace gpupool::wire
