// The call table on the worker's side: what each row's id executes. Built by the compiler from protocol/cuda/calls.def.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/wire/reader.h"
#include "protocol/wire/writer.h"
#include "server/worker/handle_table.h"

namespace gpupool::worker {

struct CallRow {
  uint16_t id;
  const char* name;
  bool needs_context;
  std::optional<CUresult> (*execute)(void* function, wire::Reader&, wire::Writer&, HandleTable&);
};

std::span<const CallRow> call_rows();
// Index of the row with this id; nullopt: no such row.
std::optional<size_t> find_row(uint16_t id);

}  // namespace gpupool::worker
