#include "server/worker/migration/history_row_rules.h"

#include <string>
#include <string_view>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/calls/parameter.h"
#include "protocol/calls/roles.h"
#include "protocol/calls/row_ids.h"
#include "server/worker/handlers/call_rows.h"

namespace gpupool::worker {
namespace {

constexpr const char* kMulticast = "multicast objects";

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

// Rows that map and unmap memory, whose objects are addresses.
constexpr std::string_view kMemoryMap = "cuMemMap", kMemoryUnmap = "cuMemUnmap",
                           kSetAccess = "cuMemSetAccess";

// Rows that make or change objects that cannot migrate, without a role that says so.
struct Obstacle {
  std::string_view name;
  const char* obstacle;
};
constexpr Obstacle kObstacles[] = {
    {"cuMulticastCreate", kMulticast},  {"cuMulticastAddDevice", kMulticast},
    {"cuMulticastBindMem", kMulticast}, {"cuMulticastBindAddr", kMulticast},
    {"cuMulticastUnbind", kMulticast},
};

// Rows of texture and surface objects, which have numbers of the device's instead of handles. The history
// keeps them as settings of their context.
struct ObjectRow {
  std::string_view name, object;
  bool creates;
};
constexpr ObjectRow kObjectRows[] = {
    {"cuTexObjectCreate", "texture", true},
    {"cuTexObjectDestroy", "texture", false},
    {"cuSurfObjectCreate", "surface", true},
    {"cuSurfObjectDestroy", "surface", false},
};

// Rows that leave the session's objects and their settings as they are: queries and work.
constexpr std::string_view kUnrecorded[] = {
    "cuCtxGetLimit",
    "cuCtxGetCacheConfig",
    "cuCtxGetSharedMemConfig",
    "cuCtxGetExecAffinity",
    "cuCtxResetPersistingL2Cache",
    "cuFlushGPUDirectRDMAWrites",
    "cuCtxRecordEvent",
    "cuCtxWaitEvent",
    "cuMemGetInfo_v2",
    "cuMemGetAccess",
    "cuMemGetAllocationGranularity",
    "cuMulticastGetGranularity",
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemsetD2D8Async",
    "cuMemsetD2D16Async",
    "cuMemsetD2D32Async",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy3DAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemBatchDecompressAsync",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeIm2colWide",
    "cuTensorMapReplaceAddress",
    "cuStreamWaitEvent",
    "cuStreamQuery",
    "cuStreamGetAttribute",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64_v2",
    "cuStreamWriteValue32_v2",
    "cuStreamWriteValue64_v2",
    "cuStreamBatchMemOp_v2",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuFuncGetAttribute",
    "cuKernelGetAttribute",
    "cuArrayGetSparseProperties",
    "cuMipmappedArrayGetSparseProperties",
    "cuArrayGetMemoryRequirements",
    "cuMipmappedArrayGetMemoryRequirements",
};

constexpr bool cannot_migrate(cuda::Kind kind) {
  return kind == cuda::Kind::texture_reference || kind == cuda::Kind::surface_reference;
}

constexpr const Setter* find_setter(std::string_view name) {
  for (const Setter& setter : kSetters) {
    if (setter.name == name) return &setter;
  }
  return nullptr;
}
constexpr const char* find_obstacle(std::string_view name) {
  for (const Obstacle& one : kObstacles) {
    if (one.name == name) return one.obstacle;
  }
  return nullptr;
}

constexpr const ObjectRow* find_object_row(std::string_view name) {
  for (const ObjectRow& one : kObjectRows) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

namespace rows {
using namespace cuda::role;
using cuda::Kind;
using cuda::Mode;

constexpr bool is_listed(std::string_view name) {
  for (const std::string_view unrecorded : kUnrecorded) {
    if (unrecorded == name) return true;
  }
  return find_setter(name) || find_obstacle(name) || find_object_row(name) || name == kMemoryMap ||
         name == kMemoryUnmap;
}
// Queries whose answers the client keeps change nothing.
constexpr bool is_query(Mode mode) {
  return mode == Mode::once || mode == Mode::once_without_context;
}
template <class Role>
constexpr bool kNamesUnmovable = false;
template <Kind K>
constexpr bool kNamesUnmovable<handle_in_use<K>> = cannot_migrate(K);

template <class... Roles>
constexpr bool kRowNamesUnmovable = (kNamesUnmovable<Roles> || ...);

#define CUDA_CALL(id, name, mode, ...)                                                                     \
  static_assert(is_query(Mode::mode) || cuda::kRowMakes<__VA_ARGS__> || cuda::kRowDestroys<__VA_ARGS__> || \
                    kRowNamesUnmovable<__VA_ARGS__> || is_listed(#name),                                   \
                #name                                                                                      \
                ": a migration must know whether this row changes objects or settings: add "               \
                "it to kSetters, kObstacles, kObjectRows or kUnrecorded");
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
}  // namespace rows

struct RowRule {
  const Setter* setter = nullptr;
  const ObjectRow* object = nullptr;
  bool maps = false, unmaps = false;
  const char* obstacle = nullptr;
  bool counts = false;  // changes the history
};

RowRule rule_of(const CallRow& row) {
  const std::string_view name = row.name;
  RowRule rule{.setter = find_setter(name),
               .object = find_object_row(name),
               .maps = name == kMemoryMap,
               .unmaps = name == kMemoryUnmap,
               .obstacle = find_obstacle(name)};
  rule.counts =
      rule.setter || rule.object || rule.maps || rule.unmaps || rule.obstacle || row.makes || row.destroys;
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

std::string selected(const Setter& setter, std::span<const std::byte> body) {
  std::string text(setter.undoes.empty() ? setter.name : setter.undoes);
  for (const Setter::Bytes& part : {setter.selector, setter.second}) {
    if (part.at + part.count > body.size()) continue;
    text.append(reinterpret_cast<const char*>(body.data()) + part.at, part.count);
  }
  return text;
}

HistoryEffect effect_on_object(const ObjectRow& row, uint64_t context, std::span<const std::byte> body,
                               std::span<const std::byte> reply) {
  HistoryEffect effect;
  wire::Reader arguments(body), results(reply);
  const auto number = row.creates ? results.get<uint64_t>() : arguments.get<uint64_t>();
  effect.configures = context;
  effect.setting = std::string(row.object) + " " + std::to_string(number);
  effect.forgets_setting = !row.creates;
  if (!row.creates) return effect;
  effect.checks_reply = true;
  arguments.get_bytes(2);  // whether the first two parameters are present
  const auto resource = arguments.get<CUDA_RESOURCE_DESC>();
  if (resource.resType == CU_RESOURCE_TYPE_ARRAY)
    effect.uses.push_back(cuda::handle_bits(resource.res.array.hArray));
  else if (resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    effect.uses.push_back(cuda::handle_bits(resource.res.mipmap.hMipmappedArray));
  else
    effect.names_memory = true;
  return effect;
}

}  // namespace

bool row_changes_history(uint16_t id) {
  const auto row = find_row(id);
  return row && row_rules()[*row].counts;
}

HistoryEffect effect_of_row(const wire::CommandHeader& header, std::span<const std::byte> body,
                            std::span<const std::byte> reply) {
  HistoryEffect effect;
  const auto index = find_row(header.id);
  CallObjects objects;
  if (!index || !call_rows()[*index].objects(wire::Reader(body), objects)) return effect;
  const RowRule& rule = row_rules()[*index];
  if (rule.object) return effect_on_object(*rule.object, header.context, body, reply);
  effect.makes.assign(objects.made.begin(), objects.made.end());
  effect.destroys.assign(objects.destroyed.begin(), objects.destroyed.end());
  effect.uses.assign(objects.named.begin(), objects.named.end());
  effect.obstacle = rule.obstacle;
  for (const uint64_t made : effect.makes) {
    if (cannot_migrate(cuda::kind_of(made))) effect.obstacle = kReferenceObstacle;
  }
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

std::optional<uint64_t> recorded_event(uint16_t id, wire::Reader body) {
  switch (id) {
    case cuda::row_id::cuEventRecord:
    case cuda::row_id::cuEventRecordWithFlags: return body.get<uint64_t>();
#if CUDA_VERSION >= 12050
    case cuda::row_id::cuCtxRecordEvent:
      (void)body.get<uint64_t>();  // the context
      return body.get<uint64_t>();
#endif
    default: return std::nullopt;
  }
}

}  // namespace gpupool::worker
