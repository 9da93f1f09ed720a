// Independent record of which lease had which share of which GPU at which time, built from the clients'
// tokens and from poolds' logs, never from the scheduler's state. Finds shares that were granted twice, and
// sessions without a lease. One thread; does no I/O.
//
// All times are milliseconds since 1970 on the one clock of the machine that runs the whole test.
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
  // Records a token that a client has received; renewals may be passed as well.
  void token(const lease::Lease& lease);
  // Records a line of poold's JSON log on `node`. Pass the lines in their order.
  void log_line(const std::string& node, const std::string& line);
  // Records that the node's poold has ended, and with it all its sessions.
  void poold_gone(const std::string& node, int64_t at);

  // Returns the violations; empty if there are none. Call after all tokens and log lines have been passed.
  std::vector<std::string> violations() const;
  // The sessions that poolds have logged.
  struct Session {
    std::string node;
    std::string lease;   // hexadecimal
    int64_t worker = 0;  // pid on its host
    int64_t started = 0;
    std::optional<int64_t> ended;
  };
  const std::vector<Session>& sessions() const { return sessions_; }
  size_t leases() const { return grants_.size(); }

 private:
  struct Run {  // one poold process
    std::string node;
    std::optional<int64_t> gone;
  };
  struct Grant {
    std::string boot;
    int64_t issued = 0;  // time of the first token
    std::vector<lease::Share> shares;
  };
  using OnNode = std::pair<std::string, std::string>;  // (node, lease)

  void begins_session(const std::string& node, Session session);
  std::optional<int64_t> end_of(const OnNode& key, const Grant& grant) const;

  std::map<std::string, uint64_t> memory_;  // bytes, by GPU UUID
  std::map<OnNode, Grant> grants_;
  std::map<std::string, Run> runs_;          // by boot id
  std::map<std::string, std::string> boot_;  // node -> boot id of its present poold
  std::map<OnNode, int64_t> over_;           // when the lease was no longer usable on the node
  std::set<OnNode> ordered_, ended_;         // the scheduler ordered its end; it has ended
  std::vector<Session> sessions_;
  std::map<std::pair<std::string, uint64_t>, size_t> running_;  // (node, session) -> index in sessions_
  std::vector<std::string> violations_;
};

// Parses the "time" of a log line; 0 if it is malformed.
int64_t milliseconds_of(const std::string& time);

}  // namespace gpupool::testing
