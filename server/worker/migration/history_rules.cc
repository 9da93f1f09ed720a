#include "server/worker/migration/history_rules.h"

#include <cstring>
#include <string_view>

#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "protocol/wire/reader.h"
#include "server/worker/handlers/call_rows.h"

namespace gpupool::worker {
namespace {

using Id = wire::Command;

// Keys of what has no handle. No handle has these bits: kinds are smaller than 0x60.
constexpr uint64_t kHostMemory = uint64_t{0x60} << 56;    // combined with its number
constexpr uint64_t kAvoidedRange = uint64_t{0x61} << 56;  // combined with the page of its address

constexpr const char* kShared = "memory or events that are shared with other programs";
constexpr const char* kArrays = "arrays, textures or surfaces";
constexpr const char* kResources = "green contexts or their resources";

// Rows that change a setting. `selector`: the bytes of the body that say which of the object's settings.
struct Setter {
  std::string_view name;
  struct Bytes {
    size_t at = 0, count = 0;
  } selector, second = {};
  bool forgets = false;  // undoes the setting of the row `undoes`
  std::string_view undoes = {};
};
constexpr Setter kSetters[] = {
    {"cuCtxSetLimit", {0, 4}},
    {"cuCtxSetCacheConfig", {}},
    {"cuCtxSetSharedMemConfig", {}},
    {"cuCtxEnablePeerAccess", {0, 8}},
    {"cuCtxDisablePeerAccess", {0, 8}, {}, true, "cuCtxEnablePeerAccess"},
    {"cuFuncSetAttribute", {8, 4}},
    {"cuFuncSetCacheConfig", {}},
    {"cuFuncSetSharedMemConfig", {}},
    {"cuKernelSetAttribute", {0, 4}, {16, 4}},
    {"cuKernelSetCacheConfig", {12, 4}},
    {"cuStreamSetAttribute", {8, 4}},
    {"cuStreamCopyAttributes", {8, 8}},
    {"cuMemSetAccess", {0, 16}},
};

// Rows that make something without a handle, or whose objects cannot migrate.
constexpr std::string_view kMemoryMap = "cuMemMap", kMemoryUnmap = "cuMemUnmap",
                           kSetAccess = "cuMemSetAccess";
constexpr uint16_t kFirstArrayRow = 0x0700, kLastArrayRow = 0x07ff;  // array.def
constexpr std::string_view kMulticast = "cuMulticast";

bool makes_in_array_rows(std::string_view name) {
  return name.ends_with("Create") || name.ends_with("Create_v2");
}

struct RowRule {
  const Setter* setter = nullptr;
  bool maps = false, unmaps = false;
  const char* obstacle = nullptr;
  bool counts = false;  // changes the history
};

RowRule rule_of(const CallRow& row) {
  const std::string_view name = row.name;
  RowRule rule;
  for (const Setter& setter : kSetters) {
    if (setter.name == name) rule.setter = &setter;
  }
  rule.maps = name == kMemoryMap;
  rule.unmaps = name == kMemoryUnmap;
  if (row.id >= kFirstArrayRow && row.id <= kLastArrayRow && makes_in_array_rows(name))
    rule.obstacle = kArrays;
  if (name.starts_with(kMulticast) && !name.ends_with("Granularity")) rule.obstacle = "multicast objects";
  rule.counts = rule.setter || rule.maps || rule.unmaps || rule.obstacle || row.makes || row.destroys;
  return rule;
}

const std::vector<RowRule>& row_rules() {
  static const auto rules = [] {
    std::vector<RowRule> all;
    for (const CallRow& row : call_rows()) all.push_back(rule_of(row));
    return all;
  }();
  return rules;
}

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

std::string selected(const Setter& setter, std::span<const std::byte> body) {
  std::string text(setter.undoes.empty() ? setter.name : setter.undoes);
  for (const Setter::Bytes& part : {setter.selector, setter.second}) {
    if (part.at + part.count > body.size()) continue;
    text.append(reinterpret_cast<const char*>(body.data()) + part.at, part.count);
  }
  return text;
}

HistoryEffect effect_of_row(const wire::CommandHeader& header, std::span<const std::byte> body) {
  HistoryEffect effect;
  const auto index = find_row(header.id);
  CallObjects objects;
  if (!index || !call_rows()[*index].objects(wire::Reader(body), objects)) return effect;
  const RowRule& rule = row_rules()[*index];
  effect.makes.assign(objects.made.begin(), objects.made.end());
  effect.destroys.assign(objects.destroyed.begin(), objects.destroyed.end());
  effect.uses.assign(objects.named.begin(), objects.named.end());
  effect.obstacle = rule.obstacle;
  wire::Reader reader(body);
  if (rule.maps) effect.makes.push_back(History::mapped_key(reader.get<uint64_t>()));
  if (rule.unmaps) {
    const auto address = reader.get<uint64_t>();
    effect.unmaps = {address, address + reader.get<uint64_t>()};
  }
  if (!rule.setter) return effect;
  const bool of_range = rule.setter->name == kSetAccess;
  if (of_range)
    effect.configures = History::mapped_key(reader.get<uint64_t>());
  else if (objects.stream != CallObjects::kNoStream)
    effect.configures = objects.stream;
  else
    effect.configures = effect.uses.empty() ? header.context : effect.uses.front();
  effect.setting = selected(*rule.setter, body);
  effect.forgets_setting = rule.setter->forgets;
  return effect;
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
      if (node.body_bytes != sizeof(wire::GraphCopy)) effect.obstacle = kArrays;
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
    (void)(on_contexts() || on_code() || on_graphs() || on_what_cannot_migrate());
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
      case Id::create_linker:
        cannot_migrate("a linker in use");
        return makes(reader_.get<wire::CreateLinker>().linker);
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

  bool on_what_cannot_migrate() {
    switch (id_) {
      case Id::share_host_memory:
        cannot_migrate("pinned memory that the server maps");
        return makes(kHostMemory | reader_.get<wire::ShareHostMemory>().memory);
      case Id::release_host_memory:
        return destroys(kHostMemory | reader_.get<wire::ReleaseHostMemory>().memory);
      case Id::array_part:
      case Id::get_reference: cannot_migrate(kArrays); return makes(reader_.get<uint64_t>());
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

}  // namespace

bool changes_history(uint16_t command) {
  if (command < wire::kFirstCommand) {
    const auto row = find_row(command);
    return row && row_rules()[*row].counts;
  }
  switch (static_cast<Id>(command)) {
    case Id::avoid_addresses:
    case Id::retain_primary_context:
    case Id::release_primary_context:
    case Id::reset_primary_context:
    case Id::create_context:
    case Id::destroy_context:
    case Id::load_module:
    case Id::load_library:
    case Id::get_function:
    case Id::get_kernel:
    case Id::kernel_function:
    case Id::get_global:
    case Id::graph_nodes:
    case Id::instantiate_graph:
    case Id::update_graph:
    case Id::set_graph_node:
    case Id::enable_graph_node:
    case Id::destroy_graph:
    case Id::create_linker:
    case Id::destroy_linker:
    case Id::share_host_memory:
    case Id::release_host_memory:
    case Id::array_part:
    case Id::get_reference:
    case Id::describe_resources:
    case Id::export_memory:
    case Id::import_memory:
    case Id::export_event:
    case Id::import_event:
    case Id::own_stream: return true;
    default: return false;
  }
}

HistoryEffect effect_of(const wire::CommandHeader& header, std::span<const std::byte> body,
                        bool context_remains) {
  HistoryEffect effect = header.id < wire::kFirstCommand
                             ? effect_of_row(header, body)
                             : CommandEffect(static_cast<Id>(header.id), body, context_remains).get();
  if (header.context == 0) return effect;
  effect.uses.push_back(header.context);
  if (effect.owner == 0 && !effect.makes.empty() && belongs_to_context(effect.makes.front()))
    effect.owner = header.context;
  return effect;
}

}  // namespace gpupool::worker
