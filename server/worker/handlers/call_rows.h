// The worker's side of the call table: the function behind each row's id. Generated at compile time from
// protocol/calls/calls.def; immutable. Any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/wire/reader.h"
#include "protocol/wire/writer.h"
#include "server/worker/session/command_order.h"
#include "server/worker/session/handle_table.h"

namespace gpupool::worker {

class DeviceMemory;

// The objects that a request names, according to the roles of its parameters.
struct CallObjects {
  static constexpr uint64_t kNoStream = ~uint64_t{0};
  uint64_t stream = kNoStream;       // handle in the request; also set for a stream that the call destroys
  OrderKeys named, made, destroyed;  // handles
  bool references = false;  // names texture or surface references, which launches read without naming them
};

struct CallRow {
  uint16_t id;
  const char* name;
  bool needs_context;
  bool makes;     // makes objects: new_handle
  bool destroys;  // destroys objects: destroyed_handle
  bool is_async;  // the client does not wait for execution, except in synchronous mode
  std::optional<CUresult> (*execute)(void* function, wire::Reader&, wire::Writer&, HandleTable&,
                                     const DeviceMemory&);
  bool (*objects)(wire::Reader, CallObjects&);  // returns false if malformed
};

std::span<const CallRow> call_rows();
// Returns the index of the row with this id, or nullopt if there is none.
std::optional<size_t> find_row(uint16_t id);

}  // namespace gpupool::worker
