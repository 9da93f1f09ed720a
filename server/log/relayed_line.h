// A line that a worker has written for poold's log, taken apart. Only that goes on: whatever a worker that has been taken over writes, poold makes
// the line of the log from checked parts, with its own word for who wrote it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/log/log.h"

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

// nullopt: not a line of log::start_to_poold().
std::optional<RelayedLine> parse_relayed(std::string_view line);

}  // namespace gpupool::log
