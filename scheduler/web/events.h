// The last changes of leases and nodes that operators ask for afterwards: moves, suspensions, drained and
// lost nodes. For the web page's pages of one lease and one node. In memory only, bounded; the engine's
// thread. Grants and ends are left out: they are many, and the audit file has them.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/json/json.h"

namespace gpupool::pool {

class Events {
 public:
  static constexpr size_t kMost = 1000;  // of leases, and of nodes
  static constexpr size_t kLongestText = 512;
  using Fields = std::vector<std::pair<std::string, std::string>>;
  // `name` and `fields` are those of the scheduler's log. Ignores what has neither a field "lease" nor
  // "node".
  void note(int64_t at_ms, const std::string& name, Fields fields);
  // Returns [{"at_ms", "event", and the fields as strings}, ...], oldest first.
  Json json() const;

 private:
  struct Event {
    int64_t at_ms;
    std::string name;
    Fields fields;
  };
  static Json json_of(const Event& event);
  std::deque<Event> leases_, nodes_;
};

}  // namespace gpupool::pool
