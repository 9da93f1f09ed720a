// The arguments of the plugin in plugstack.conf. Used by spank_gpupool.cc. Any thread.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::slurm {

struct Settings {
  std::string server;      // pool://HOST:PORT[,...]; empty: the user's GPUPOOL
  std::string token_file;  // for users without GPUPOOL_TOKEN_FILE; "~/" is the user's home; may be empty
  // Holds the folders of a node's jobs. Not in /run/gpupool, which belongs to poold and is shared with
  // containers.
  std::string folder = "/run/gpupool-slurm";
  std::string programs;  // folder of pool-lease
  bool check = true;     // ask the scheduler when a job is submitted
};

// `words`: the arguments, NAME=VALUE each. `plugin`: path of the plugin, from which the folder of pool-lease
// follows unless gpupool=PREFIX names the installation. ErrorCode::invalid: an argument is unknown or wrong.
Result<Settings> parse_settings(int count, char* const* words, const std::string& plugin);

}  // namespace gpupool::slurm
