// Limits of one tenant on a host and on each of its GPUs, from the table protocol/control/quota.def, which
// says what each of them limits. 0 means no limit unless said otherwise there.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "common/text/units.h"
#include "protocol/control/quota_kinds.h"

namespace gpupool::quota {

enum class Mode : uint32_t {
  elastic,    // may use what others leave idle, until they want it
  hard,       // never more than its share
  partition,  // has multiprocessors of its own; takes no turns with other tenants
};
inline const char* name_of(Mode mode) {
  return mode == Mode::partition ? "partition" : mode == Mode::hard ? "hard" : "elastic";
}

enum class Priority : uint32_t { best_effort, normal, latency_critical };

using gpupool::kWholeGpu;

// Limit of sessions that applies if a quota limits memory but not sessions: each of them, as each stream and
// module, takes device memory that only the driver accounts for.
constexpr uint32_t kUsualSessions = 64;

// Limits on one GPU.
struct GpuShare {
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  type member = initial;
#include "protocol/control/quota.def"
  bool operator==(const GpuShare&) const = default;
};

// Limits on one GPU that differ from those on every GPU.
struct GpuLimits {
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  std::optional<type> member;
#include "protocol/control/quota.def"
  bool operator==(const GpuLimits&) const = default;
};

struct Quota {
  GpuShare each;                       // for every GPU without limits of its own
  std::map<uint32_t, GpuLimits> gpus;  // by the host's GPU number
#define QUOTA_IN_POOLD(type, member, initial, unit, key, title, importance, metric, help) \
  type member = initial;
#define QUOTA_IN_WORKERS(type, member, with_memory, unit, key, title, importance, metric, help) \
  type member = 0;
#include "protocol/control/quota.def"
  bool operator==(const Quota&) const = default;

  bool limits_memory() const {
    return each.memory_bytes != 0 || std::any_of(gpus.begin(), gpus.end(), [](const auto& gpu) {
             return gpu.second.memory_bytes.value_or(0) != 0;
           });
  }
  // The limits to enforce; 0: no limit.
  uint32_t most_sessions() const { return sessions == 0 && limits_memory() ? kUsualSessions : sessions; }
#define QUOTA_IN_WORKERS(type, member, with_memory, unit, key, title, importance, metric, help) \
  type most_##member() const { return member == 0 && limits_memory() ? type{with_memory} : member; }
#include "protocol/control/quota.def"

  GpuShare with(const GpuLimits& limits) const {
    GpuShare share = each;
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  share.member = limits.member.value_or(each.member);
#include "protocol/control/quota.def"
    return share;
  }
  GpuShare of(uint32_t gpu) const {
    const auto found = gpus.find(gpu);
    return found == gpus.end() ? each : with(found->second);
  }
};

}  // namespace gpupool::quota
