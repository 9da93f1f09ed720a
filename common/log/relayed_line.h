// Parses a line that a worker has written for poold's log. poold writes its own line from the validated parts
// and adds the worker's PID, so a compromised worker cannot forge lines. Any thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/log/log.h"

namespace gpupool::log {

struct RelayedLine {
  struct Part {
    std::string key;
    std::string value;
    bool quoted;
  };
  Level level;
  std::string event;
  std::vector<Part> parts;
};

// Returns nullopt if `line` does not have the format of start_to_poold().
std::optional<RelayedLine> parse_relayed(std::string_view line);

}  // namespace gpupool::log
