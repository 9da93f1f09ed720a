// A change of one entry of the store (store.h). A value; any thread.
#pragma once
#include <optional>
#include <string>

namespace gpupool::scheduler {

struct Write {
  std::string key;
  std::optional<std::string> value;  // null: delete the entry if it exists
};

}  // namespace gpupool::scheduler
