#include "server/worker/migration/history_rules.h"

#include <array>
#include <iterator>

#include "protocol/calls/handles.h"
#include "protocol/calls/parameter.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "protocol/wire/reader.h"
#include "server/worker/migration/history_row_rules.h"

namespace gpupool::worker {
namespace {

using Id = wire::Command;

// Keys of what has no handle. No handle has these bits: kinds are smaller than 0x60.
constexpr uint64_t kHostMemory = uint64_t{0x60} << 56;    // combined with its number
constexpr uint64_t kAvoidedRange = uint64_t{0x61} << 56;  // combined with the page of its address

constexpr const char* kShared = "memory or events that are shared with other programs";
constexpr const char* kResources = "green contexts or their resources";

// True if the object is destroyed with the context in which it was made.
bool belongs_to_context(uint64_t handle) {
  switch (cuda::kind_of(handle)) {
    case cuda::Kind::module:
    case cuda::Kind::stream:
    case cuda::Kind::event:
    case cuda::Kind::linker:
    case cuda::Kind::array:
    case cuda::Kind::mipmapped_array:
    case cuda::Kind::texture_reference:
    case cuda::Kind::surface_reference: return true;
    default: return false;
  }
}

// The arrays that a copy names by their handles.
void add_arrays(const CUDA_MEMCPY3D& copy, HistoryEffect& effect) {
  if (copy.srcMemoryType == CU_MEMORYTYPE_ARRAY) effect.uses.push_back(cuda::handle_bits(copy.srcArray));
  if (copy.dstMemoryType == CU_MEMORYTYPE_ARRAY) effect.uses.push_back(cuda::handle_bits(copy.dstArray));
}

// The objects that a graph's node names. Returns false if the node is malformed.
bool add_node(wire::Reader& reader, HistoryEffect& effect) {
  const auto node = reader.get<wire::GraphNode>();
  (void)reader.get_bytes(node.dependency_count * sizeof(uint32_t) +
                         node.edge_count * sizeof(wire::GraphEdge));
  const auto bytes = reader.get_bytes(node.body_bytes);
  if (!reader.ok()) return false;
  wire::Reader body(bytes);
  if (node.context != 0) effect.uses.push_back(node.context);
  switch (node.kind) {
    case wire::GraphNodeKind::kernel: effect.uses.push_back(body.get<wire::Launch>().function); break;
    case wire::GraphNodeKind::event_record:
    case wire::GraphNodeKind::event_wait: effect.uses.push_back(body.get<wire::GraphEvent>().event); break;
    case wire::GraphNodeKind::copy:
      if (node.body_bytes == sizeof(CUDA_MEMCPY3D)) add_arrays(body.get<CUDA_MEMCPY3D>(), effect);
      break;
    case wire::GraphNodeKind::conditional: {
      const auto conditional = body.get<wire::GraphConditional>();
      for (uint32_t i = 0; i < conditional.bodies && body.ok(); ++i)
        effect.parts.push_back(body.get<uint64_t>());
      break;
    }
    default: break;
  }
  return true;
}

HistoryEffect effect_of_nodes(std::span<const std::byte> bytes) {
  HistoryEffect effect;
  wire::Reader reader(bytes);
  const auto head = reader.get<wire::GraphNodes>();
  effect.makes.push_back(head.graph);
  for (uint32_t i = 0; i < head.count && add_node(reader, effect); ++i) {
  }
  return effect;
}

// Builds the effect of a command that is no row.
class CommandEffect {
 public:
  CommandEffect(Id id, std::span<const std::byte> body, bool context_remains)
      : id_(id), body_(body), reader_(body), context_remains_(context_remains) {}

  HistoryEffect get() {
    (void)(on_contexts() || on_code() || on_graphs() || on_arrays() || on_what_cannot_migrate());
    return std::move(effect_);
  }

 private:
  bool makes(uint64_t handle, uint64_t owner = 0) {
    effect_.makes.push_back(handle);
    effect_.owner = owner;
    if (owner != 0) effect_.uses.push_back(owner);
    return true;
  }
  bool configures(uint64_t object, std::string setting) {
    effect_.configures = object;
    effect_.setting = std::move(setting);
    return true;
  }
  bool destroys(uint64_t object) {
    effect_.destroys.push_back(object);
    return true;
  }
  bool cannot_migrate(const char* what) {
    effect_.obstacle = what;
    return true;
  }

  // Each returns false for commands of other kinds.
  bool on_contexts() {
    switch (id_) {
      case Id::avoid_addresses: return makes(kAvoidedRange | reader_.get<wire::AddressRange>().base >> 12);
      case Id::retain_primary_context: return makes(reader_.get<wire::PrimaryContext>().handle);
      case Id::release_primary_context:
      case Id::reset_primary_context:
        return context_remains_ || destroys(reader_.get<wire::PrimaryContext>().handle);
      case Id::create_context: {
        const auto context = reader_.get<wire::CreateContext>();
        if ((context.flags & wire::kGreenContext) != 0) cannot_migrate(kResources);
        return makes(context.handle);
      }
      case Id::destroy_context: return destroys(reader_.get<wire::DestroyContext>().handle);
      case Id::own_stream: return configures(reader_.get<wire::OwnStream>().stream, "own");
      default: return false;
    }
  }

  bool on_code() {
    switch (id_) {
      case Id::load_module:
      case Id::load_library: return makes(reader_.get<wire::LoadImage>().handle);
      case Id::get_function:
      case Id::get_kernel: {
        const auto get = reader_.get<wire::GetFunction>();
        return makes(get.handle, get.owner);
      }
      case Id::kernel_function: {
        const auto get = reader_.get<wire::KernelFunction>();
        return makes(get.handle, get.kernel);
      }
      case Id::get_global: {
        const auto get = reader_.get<wire::GetGlobal>();
        effect_.checks_reply = true;
        return configures(get.owner, "variable " + std::string(reader_.get_text()));
      }
      case Id::create_linker: return makes(reader_.get<wire::CreateLinker>().linker);
      case Id::add_link_input: return makes(reader_.get<wire::AddLinkInput>().linker);  // adds to it
      case Id::complete_link: return configures(reader_.get<wire::CompleteLink>().linker, "complete");
      case Id::destroy_linker: return destroys(reader_.get<wire::DestroyLinker>().linker);
      default: return false;
    }
  }

  bool on_graphs() {
    switch (id_) {
      case Id::graph_nodes: effect_ = effect_of_nodes(body_); return true;
      case Id::instantiate_graph: {
        const auto graph = reader_.get<wire::InstantiateGraph>();
        effect_.takes_over.push_back(graph.graph);
        return makes(graph.executable);
      }
      case Id::update_graph: {
        const auto update = reader_.get<wire::UpdateGraph>();
        effect_.takes_over.push_back(update.graph);
        return configures(update.executable, "update");
      }
      case Id::set_graph_node:
      case Id::enable_graph_node: {
        const auto set = reader_.get<wire::SetGraphNode>();
        if (id_ == Id::set_graph_node) (void)add_node(reader_, effect_);
        return configures(set.executable,
                          (id_ == Id::set_graph_node ? "set " : "enable ") + std::to_string(set.node));
      }
      case Id::destroy_graph: return destroys(reader_.get<wire::DestroyGraph>().executable);
      default: return false;
    }
  }

  bool on_arrays() {
    switch (id_) {
      case Id::array_part: {
        const auto part = reader_.get<wire::ArrayPart>();
        return makes(part.handle, part.whole);
      }
      case Id::destroy_array: return destroys(reader_.get<wire::DestroyArray>().array);
      default: return false;
    }
  }

  bool on_what_cannot_migrate() {
    switch (id_) {
      case Id::share_host_memory:
        cannot_migrate("pinned memory that the server maps");
        return makes(kHostMemory | reader_.get<wire::ShareHostMemory>().memory);
      case Id::release_host_memory:
        return destroys(kHostMemory | reader_.get<wire::ReleaseHostMemory>().memory);
      case Id::get_reference: {
        const auto reference = reader_.get<wire::GetReference>();
        cannot_migrate(kReferenceObstacle);
        return makes(reference.handle, reference.module);
      }
      case Id::describe_resources:
        cannot_migrate(kResources);
        return makes(reader_.get<wire::DescribeResources>().description);
      case Id::export_memory:
      case Id::import_memory:
      case Id::export_event:
      case Id::import_event: return cannot_migrate(kShared);
      default: return false;
    }
  }

  const Id id_;
  const std::span<const std::byte> body_;
  wire::Reader reader_;
  const bool context_remains_;
  HistoryEffect effect_;
};

// The commands that CommandEffect has cases for.
constexpr Id kRecordedCommands[] = {
    Id::avoid_addresses,
    Id::retain_primary_context,
    Id::release_primary_context,
    Id::reset_primary_context,
    Id::create_context,
    Id::destroy_context,
    Id::load_module,
    Id::load_library,
    Id::get_function,
    Id::get_kernel,
    Id::kernel_function,
    Id::get_global,
    Id::graph_nodes,
    Id::instantiate_graph,
    Id::update_graph,
    Id::set_graph_node,
    Id::enable_graph_node,
    Id::destroy_graph,
    Id::create_linker,
    Id::add_link_input,
    Id::complete_link,
    Id::destroy_linker,
    Id::share_host_memory,
    Id::release_host_memory,
    Id::array_part,
    Id::destroy_array,
    Id::get_reference,
    Id::describe_resources,
    Id::export_memory,
    Id::import_memory,
    Id::export_event,
    Id::import_event,
    Id::own_stream,
};
constexpr Id kUnrecordedCommands[] = {
    // DeviceMemory knows the memory that these map and free.
    Id::map_memory,
    Id::free_memory,
    Id::move_addresses,
    // Work, and what the client exchanges with it.
    Id::launch,
    Id::launch_graph,
    Id::upload_graph,
    Id::host_function,
    Id::host_function_done,
    Id::hold_stream,
    Id::resume_stream,
    Id::copy_to_device,
    Id::copy_from_device,
    Id::copy_shared,
    Id::bulk_to_device,
    Id::bulk_from_device,
    Id::bulk_to_peer,
    Id::copy_to_peer,
    Id::cancel_bulk,
    Id::direct_to_device,
    Id::direct_from_device,
    // Waits and queries.
    Id::ping,
    Id::read_clock,
    Id::synchronize_context,
    Id::synchronize_stream,
    Id::synchronize_event,
    Id::await_record,
    Id::await_barriers,
    Id::await_room,
    Id::kernel_names,
    Id::device_resource,
    Id::split_resource,
    Id::linked_image,
    // Parts of an image, which History::keep_image() keeps, and changes of objects that cannot migrate.
    Id::upload_part,
    Id::set_border_color,
    // The session itself, and migrations.
    Id::goodbye,
    Id::acknowledge,
    Id::adopt_session,
    Id::begin_migration,
    Id::migrate_session,
    Id::end_migration,
    Id::fill_variable,
    Id::place_variable,
    Id::fill_array,
    Id::fill_memory,
};

template <size_t N>
constexpr int count_of(const Id (&ids)[N], Id id) {
  int count = 0;
  for (const Id one : ids) count += one == id;
  return count;
}

#define COMMAND(id, name)                                                                                   \
  static_assert(count_of(kRecordedCommands, Id::name) + count_of(kUnrecordedCommands, Id::name) == 1, #name \
                ": a migration must know whether this command changes objects or settings: add it "         \
                "to kRecordedCommands or kUnrecordedCommands");
#include "protocol/wire/commands.def"
#undef COMMAND

// Indexed by the command's position in commands.def.
constexpr auto kIsRecorded = [] {
  std::array<bool, std::size(kRecordedCommands) + std::size(kUnrecordedCommands)> recorded{};
  for (const Id id : kRecordedCommands) recorded[static_cast<uint16_t>(id) - wire::kFirstCommand] = true;
  return recorded;
}();

}  // namespace

bool changes_history(uint16_t command) {
  if (command < wire::kFirstCommand) return row_changes_history(command);
  const size_t index = command - wire::kFirstCommand;
  return index < kIsRecorded.size() && kIsRecorded[index];
}

HistoryEffect effect_of(const wire::CommandHeader& header, std::span<const std::byte> body,
                        std::span<const std::byte> reply, bool context_remains) {
  HistoryEffect effect = header.id < wire::kFirstCommand
                             ? effect_of_row(header, body, reply)
                             : CommandEffect(static_cast<Id>(header.id), body, context_remains).get();
  if (header.context == 0) return effect;
  effect.uses.push_back(header.context);
  if (effect.owner == 0 && !effect.makes.empty() && belongs_to_context(effect.makes.front()))
    effect.owner = header.context;
  return effect;
}

}  // namespace gpupool::worker
