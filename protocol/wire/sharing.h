// Bodies of the commands that share memory and events between processes of a tenant. As in commands.h.
#pragma once
#include <array>
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// What one session of a tenant gives others: programs carry it between processes as CUDA's opaque handles, or in a file.
struct SharedName {
  uint32_t magic;         // kSharedName
  uint32_t kind;          // the client's: which of CUDA's handles it is
  uint64_t server;        // HelloReply.server_id
  uint64_t session;       // whose it is
  std::array<uint8_t, 16> secret;
  uint64_t offset;        // this and the next: of the allocation, in the memory
  uint64_t size;          // the client's
  uint64_t reserved;
};
constexpr uint32_t kSharedName = 0x52414853;  // "SHAR"
// export_memory: memory that the client has made (cuMemCreate), or what is mapped at an address by map_memory. Reply: SharedName, with
// the address's offset; the same until the memory is released. export_event: of an event of several processes. Reply: SharedName.
struct ExportMemory {
  uint64_t memory;        // 0: the address counts
  uint64_t address;
};
struct ExportEvent {
  uint64_t event;
};
// import_memory: as cuMemCreate, with the memory that the name stands for. Reply: ImportedMemory. CUDA_ERROR_INVALID_VALUE: nothing
// of this tenant's has that name now.
constexpr uint32_t kOfOthersOnly = 1;  // the session's own is refused (CUDA_ERROR_INVALID_CONTEXT)
struct ImportMemory {
  uint64_t memory;        // new
  SharedName name;
  uint32_t flags;
  uint32_t reserved;
};
struct ImportedMemory {
  uint64_t size;
  uint64_t handle_types;  // CUmemAllocationHandleType, as asked for when it was made
  int32_t device;         // kOfNoDevice: a multicast object
  uint32_t reserved;
};
constexpr int32_t kOfNoDevice = -1;
struct ImportEvent {
  uint64_t event;         // new
  SharedName name;
};

static_assert(kIsBody<SharedName, 64>);
static_assert(kIsBody<ExportMemory, 16>);
static_assert(kIsBody<ExportEvent, 8>);
static_assert(kIsBody<ImportMemory, 80>);
static_assert(kIsBody<ImportedMemory, 24>);
static_assert(kIsBody<ImportEvent, 72>);

}  // namespace gpupool::wire
