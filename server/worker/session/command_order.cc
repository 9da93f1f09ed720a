#include "server/worker/session/command_order.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "server/worker/graphs/graphs.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/handlers/launch.h"
#include "server/worker/session/command.h"
#include "server/worker/session/handle_table.h"

namespace gpupool::worker {
namespace {

using Rule = CommandOrder::Rule;
using Id = wire::Command;

// Keys that are not handles of the client; handles never have the highest bit set.
constexpr uint64_t kHostMemory = uint64_t{1} << 63;  // combined with the number of shared host memory
// All frees share this key, because they retire in the order of the commands.
constexpr uint64_t kFrees = ~uint64_t{0};

// Rows whose parameter roles do not determine their order. `writes`: they change the objects that they name.
// `early`: the result of returns_early().
struct Exception {
  std::string_view name;
  Rule rule;
  bool writes = false;
  bool early = false;
  bool for_all_streams = false;
};
constexpr Exception kExceptions[] = {
    {"cuStreamQuery", Rule::query},
    {"cuEventQuery", Rule::query},
    {"cuEventElapsedTime", Rule::query},
    {"cuEventElapsedTime_v2", Rule::query},
    {"cuEventRecord", Rule::in_order, true},
    {"cuEventRecordWithFlags", Rule::in_order, true},
    {"cuCtxRecordEvent", Rule::alone},  // records an event for all streams of a context
    {"cuCtxWaitEvent", Rule::alone, false, false, true},
    {"cuFuncSetAttribute", Rule::in_order, true, true},
    {"cuFuncSetCacheConfig", Rule::in_order, true, true},
    {"cuFuncSetSharedMemConfig", Rule::in_order, true, true},
    {"cuKernelSetAttribute", Rule::in_order, true, true},
    {"cuKernelSetCacheConfig", Rule::in_order, true, true},
    {"cuStreamGetAttribute", Rule::at_once},
    {"cuStreamSetAttribute", Rule::at_once},  // hints to the device
    {"cuStreamCopyAttributes", Rule::at_once},
};

// Indexed by the row's position in the call table; null: no exception.
const std::vector<const Exception*>& exceptions() {
  static const auto by_row = [] {
    std::vector<const Exception*> found;
    for (const CallRow& row : call_rows()) {
      const auto* const one = std::find_if(std::begin(kExceptions), std::end(kExceptions),
                                           [&](const Exception& known) { return known.name == row.name; });
      found.push_back(one == std::end(kExceptions) ? nullptr : one);
    }
    return found;
  }();
  return by_row;
}

void set_stream(HandleTable& table, CommandOrder& order, uint64_t handle, bool gives_work) {
  order.stream = table.find_stream(handle);
  order.gives_work = gives_work && order.stream != nullptr;
}

CommandOrder order_of_row(HandleTable& table, const Command& command) {
  CommandOrder order;
  order.sequence = command.header.sequence;
  const auto row = find_row(command.header.id);
  CallObjects objects;
  if (!row || !call_rows()[*row].objects(command.body, objects)) return order;
  const Exception* const exception = exceptions()[*row];
  order.rule = exception ? exception->rule : objects.references ? Rule::alone : Rule::in_order;
  order.for_all_streams = exception && exception->for_all_streams;
  if (objects.stream != CallObjects::kNoStream)
    set_stream(table, order, objects.stream, order.rule != Rule::query);
  (exception && exception->writes ? order.writes : order.reads) = objects.named;
  for (const uint64_t handle : objects.destroyed) order.writes.add(handle);
  if (order.reads.full || order.writes.full) order.rule = Rule::alone;
  return order;
}

// A launch reads its function and the function's owners (module, library), whose unloading would remove it.
void read_function(HandleTable& table, CommandOrder& order, uint64_t function) {
  for (uint64_t handle = function; handle != 0; handle = table.owner_of(handle)) order.reads.add(handle);
}

void read_launch_order(HandleTable& table, CommandOrder& order, wire::Reader body) {
  const auto read = commands::read_launch(body);
  if (!read) return;
  order.rule = Rule::in_order;
  set_stream(table, order, read->launch.stream, true);
  read_function(table, order, read->launch.function);
  for (uint32_t i = 0; i < read->launch.attribute_count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, read->attributes.data() + i * sizeof attribute, sizeof attribute);
    if (const auto event = commands::event_of(attribute)) order.writes.add(*event);
  }
}

// Sets the order of a copy in `stream` with the given wire::kCopy... flags.
void set_copy_order(HandleTable& table, CommandOrder& order, uint64_t stream, uint32_t flags) {
  if ((flags & wire::kCopyPassesOthers) != 0) return;
  order.rule = Rule::in_order;
  set_stream(table, order, stream, true);
  order.for_all_streams = (flags & wire::kCopyOrdersStreams) != 0;
}

void set_free_order(HandleTable& table, CommandOrder& order, const wire::FreeMemory& free,
                    const ContextState* context) {
  order.rule = Rule::in_order;
  order.writes.add(kFrees);
  order.frees = {free.address, free.size};
  if (free.stream == wire::kAllStreams) {
    order.rule = Rule::after_context;
    order.context = context;
  } else {  // ordered like work: after the legacy stream and after barriers
    set_stream(table, order, free.stream, true);
  }
}

void set_graph_order(const Graphs& graphs, CommandOrder& order, uint64_t executable) {
  order.rule = Rule::in_order;
  order.writes.add(executable);
  graphs.add_events(executable, order.reads, order.writes);
  if (order.reads.full || order.writes.full) order.rule = Rule::alone;
}

bool is_alone(Id id) {
  return id == Id::set_border_color || id == Id::migrate_session;
}

}  // namespace

CommandOrder order_of(Contexts& contexts, HandleTable& table, const Graphs& graphs, const Command& command) {
  const ContextState* const context = contexts.enter_named(command.header.context);
  if (command.header.id < wire::kFirstCommand) return order_of_row(table, command);
  CommandOrder order;
  order.sequence = command.header.sequence;
  wire::Reader body = command.body;
  const auto in_stream = [&](uint64_t stream) {
    order.rule = Rule::in_order;
    set_stream(table, order, stream, true);
  };
  switch (static_cast<Id>(command.header.id)) {
    case Id::launch: read_launch_order(table, order, body); break;
    case Id::copy_to_device: {
      const auto copy = body.get<wire::CopyToDevice>();
      set_copy_order(table, order, copy.stream, copy.flags);
      break;
    }
    case Id::bulk_to_device:
    case Id::direct_to_device: {
      const auto copy = body.get<wire::BulkCopy>();
      set_copy_order(table, order, copy.stream, copy.flags);
      break;
    }
    case Id::copy_from_device:
    case Id::bulk_from_device:
    case Id::bulk_to_peer:
    case Id::copy_to_peer:
    case Id::direct_from_device:
    case Id::host_function:
    case Id::hold_stream: in_stream(body.get<uint64_t>()); break;
    case Id::copy_shared: {
      const auto copy = body.get<wire::CopyShared>();
      in_stream(copy.stream);
      order.reads.add(kHostMemory | copy.memory);
      break;
    }
    case Id::release_host_memory:
      order.rule = Rule::in_order;
      order.writes.add(kHostMemory | body.get<wire::ReleaseHostMemory>().memory);
      break;
    case Id::host_function_done: {
      const auto done = body.get<wire::HostFunctionDone>();
      if (done.stream == 0) break;
      order.rule = Rule::in_order;
      set_stream(table, order, done.stream, false);
      break;
    }
    case Id::synchronize_stream:
      order.rule = Rule::in_order;
      set_stream(table, order, body.get<wire::SynchronizeStream>().stream, false);
      break;
    case Id::synchronize_event:
    case Id::await_record:
      order.rule = Rule::in_order;
      order.reads.add(body.get<uint64_t>());
      break;
    case Id::free_memory: set_free_order(table, order, body.get<wire::FreeMemory>(), context); break;
    case Id::synchronize_context:
    case Id::destroy_array:  // also waits for copies, whose bodies name arrays outside of the keys
      order.rule = Rule::after_context;
      order.context = context;
      break;
    case Id::launch_graph:
    case Id::upload_graph: {
      const auto launch = body.get<wire::LaunchGraph>();
      in_stream(launch.stream);
      set_graph_order(graphs, order, launch.executable);
      break;
    }
    case Id::update_graph:
    case Id::set_graph_node:
    case Id::enable_graph_node:
    case Id::destroy_graph: set_graph_order(graphs, order, body.get<uint64_t>()); break;
    case Id::await_barriers: order.rule = Rule::after_barriers; break;
    default: order.rule = is_alone(static_cast<Id>(command.header.id)) ? Rule::alone : order.rule;
  }
  return order;
}

bool returns_early(uint16_t command) {
  if (command < wire::kFirstCommand) {
    const auto row = find_row(command);
    return row && (call_rows()[*row].is_async || (exceptions()[*row] && exceptions()[*row]->early));
  }
  switch (static_cast<Id>(command)) {
    case Id::launch:
    case Id::copy_to_device:
    case Id::copy_shared:
    case Id::bulk_to_device:
    case Id::host_function:
    case Id::hold_stream:
    case Id::launch_graph:
    case Id::upload_graph:
    case Id::destroy_graph:
    case Id::update_graph:
    case Id::set_graph_node:
    case Id::enable_graph_node:
    case Id::free_memory:
    case Id::release_host_memory: return true;
    default: return false;
  }
}

}  // namespace gpupool::worker
