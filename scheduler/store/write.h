// A change of one entry of the store. A value; any thread.
#pragma once
#include <optional>
#include <string>

namespace gpupool::scheduler {

struct Write {
  std::string key;
  std::optional<std::string> value;  // none: the entry is deleted, if it is there
};

}  // namespace gpupool::scheduler
