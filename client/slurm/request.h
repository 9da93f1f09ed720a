// The value of --gpupool, and Slurm's texts about a job, in the form that pool-lease takes. Pure functions.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::slurm {

// Returns the query string for "gpus=2,memory=8G,one-host": "gpus=2&memory=8GiB&one-host=1". The terms are
// the options of pool-run that request resources; sizes may have Slurm's units (K, M, G, T). Empty: one GPU.
// ErrorCode::invalid: a term is unknown or has no value. Values are checked by pool-lease.
Result<std::string> request_query(const std::string& option);

// Returns the first host of a list such as "gpu[07-09,11],login1": "gpu07".
std::string first_host(const std::string& hosts);

}  // namespace gpupool::slurm
