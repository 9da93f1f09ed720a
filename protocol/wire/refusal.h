// Body of MessageKind::quota_refusal. Sent before the reply, or the later error, of a command that needed
// more than a quota of the tenant allows, to clients whose hello has takes_quota_refusals.
#pragma once
#include "protocol/wire/frame.h"

namespace gpupool::wire {

constexpr uint32_t kRefusedCount = 0, kRefusedBytes = 1;
constexpr size_t kLongestQuotaName = 64;

// Followed by the key of the quota in poold's configuration, of at most kLongestQuotaName bytes.
struct QuotaRefusal {
  uint64_t asked = 0;  // 0: not known
  uint64_t used = 0;   // at the time of the refusal, by all who share the limit
  uint64_t limit = 0;
  int32_t device = -1;  // by the session's number; -1: the quota is not one of a device
  uint32_t unit = kRefusedCount;
};
static_assert(sizeof(QuotaRefusal) == 32);

}  // namespace gpupool::wire
