// pool-admin's command line where it speaks to a pool's scheduler.
#pragma once

namespace gpupool::admin {

// The exit status. Throws Failure.
int run_for_pool(int count, char** words);

}  // namespace gpupool::admin
