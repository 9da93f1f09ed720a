// For how long usage is kept (usage_history.h). Options of pool-scheduler; a value.
#pragma once

namespace gpupool::scheduler {

struct UsageLimits {
  unsigned detail_days = 35;
  unsigned keep_days = 400;
};

}  // namespace gpupool::scheduler
