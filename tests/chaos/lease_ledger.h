// Who had what of which GPU and when: from the tokens that holders got and from what poolds logged, never from the scheduler's own
// books. It finds shares that were given twice, and sessions that nobody was granted. Values; one thread.
//
// All times are milliseconds since 1970 by the one clock of the machine that plays the whole pool.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/control/lease.pb.h"

namespace gpupool::testing {

class LeaseLedger {
 public:
  void gpu(const std::string& uuid, uint64_t memory_bytes) { memory_[uuid] = memory_bytes; }
  // A holder has got it. Renewals may be told as well.
  void token(const lease::Lease& lease);
  // A line of poold's log on `node`, as JSON; told in their order.
  void log_line(const std::string& node, const std::string& line);
  // The poold of that node has ended, with all its sessions.
  void poold_gone(const std::string& node, int64_t at);

  // What must not have been; empty: all was well. To be asked when all that was said has been told.
  std::vector<std::string> contradictions() const;
  // Those that poolds say are in use, with the workers' numbers on their host.
  struct Session {
    std::string node;
    std::string lease;  // hexadecimal
    int64_t worker = 0;
    int64_t started = 0;
    std::optional<int64_t> ended;
  };
  const std::vector<Session>& sessions() const { return sessions_; }
  size_t leases() const { return grants_.size(); }

 private:
  struct Run {  // of a poold
    std::string node;
    std::optional<int64_t> gone;
  };
  struct Grant {
    std::string boot;
    int64_t issued = 0;  // the first token's
    std::vector<lease::Share> shares;
  };
  using OnNode = std::pair<std::string, std::string>;  // node and lease

  void begins_session(const std::string& node, Session session);
  std::optional<int64_t> end_of(const OnNode& key, const Grant& grant) const;

  std::map<std::string, uint64_t> memory_;  // by GPU
  std::map<OnNode, Grant> grants_;
  std::map<std::string, Run> runs_;         // by boot
  std::map<std::string, std::string> boot_;  // by node: the poold that is there
  std::map<OnNode, int64_t> over_;          // nothing of it was left, or it is taken no more
  std::set<OnNode> ordered_, ended_;         // to end, by the scheduler; and it has
  std::vector<Session> sessions_;
  std::map<std::pair<std::string, uint64_t>, size_t> running_;  // by node and number: which of sessions_
  std::vector<std::string> strange_;
};

// Of a log line's "time".
int64_t milliseconds_of(const std::string& time);

}  // namespace gpupool::testing
