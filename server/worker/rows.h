// The call table on the worker's side: what each row's id executes. Built by the compiler from protocol/cuda/calls.def.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/wire/reader.h"
#include "protocol/wire/writer.h"
#include "server/worker/command_order.h"
#include "server/worker/handle_table.h"

namespace gpupool::worker {

// The objects that a request names, by the roles of its parameters.
struct CallObjects {
  static constexpr uint64_t kNoStream = ~uint64_t{0};
  uint64_t stream = kNoStream;          // as in the request; of a call that destroys a stream, that one
  OrderKeys named, destroyed;           // handles
  bool references = false;              // texture or surface references, which launches read without naming them
};

struct CallRow {
  uint16_t id;
  const char* name;
  bool needs_context;
  bool is_async;                        // the client does not wait for its execution, unless it waits for every call
  std::optional<CUresult> (*execute)(void* function, wire::Reader&, wire::Writer&, HandleTable&);
  bool (*objects)(wire::Reader, CallObjects&);  // false: malformed
};

std::span<const CallRow> call_rows();
// Index of the row with this id; nullopt: no such row.
std::optional<size_t> find_row(uint16_t id);

}  // namespace gpupool::worker
