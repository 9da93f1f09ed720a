// Why a quota refused a request, for the client. Values; any thread.
#pragma once
#include <functional>

#include "protocol/control/quota_kinds.h"

namespace gpupool::quota {

struct Refusal {
  KindId kind{};
  int gpu = -1;        // by the host's number; -1: the quota is not one of a GPU
  uint64_t asked = 0;  // 0: not known
  uint64_t used = 0;   // by all who share the limit
  uint64_t limit = 0;
};
using RefusalListener = std::function<void(const Refusal&)>;

}  // namespace gpupool::quota
