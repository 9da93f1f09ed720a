// Independent record of which lease had which share of which GPU at which time, built from the clients'
// tokens and from poolds' logs, never from the scheduler's state. Finds shares that were granted twice, and
// sessions without a lease. One thread; does no I/O.
//
// A lease that moves has a grant on each node. If it comes back, it has another grant there, with higher
// serials than those that the node's poold was told to end.
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
  size_t grants() const;

 private:
  struct Run {  // one poold process
    std::string node;
    std::optional<int64_t> gone;
  };
  struct Token {
    std::string boot;
    int64_t issued = 0;
    std::vector<lease::Share> shares;
  };
  struct End {  // of the lease on a node, up to a serial
    uint64_t last_serial = 0;
    std::optional<int64_t> at;  // nullopt: ordered, and a session still runs
  };
  struct OnNode {                      // what is known of a lease on a node
    std::map<uint64_t, Token> tokens;  // by serial
    std::vector<End> ends;             // with rising serials
    std::optional<int64_t>
        forgotten;  // when poold forgot the lease without an order, having no session of it
  };
  struct Grant {
    std::string boot;
    int64_t issued = 0;  // time of the first token
    std::optional<int64_t> end;
    std::vector<lease::Share> shares;
  };
  struct Use {  // of one GPU
    uint64_t milli = 0, bytes = 0;
    bool operator==(const Use&) const = default;
  };
  struct Change;
  using Key = std::pair<std::string, std::string>;  // (node, lease)

  void ends_lease(const Key& key, uint64_t last_serial, int64_t at);
  void is_gone(const Key& key, int64_t at);
  bool in_use(const Key& key) const;
  std::vector<Grant> grants_of(const OnNode& known) const;
  std::map<std::string, Use> uses_of(const Grant& grant) const;
  void find_double_grants(const std::map<Key, std::vector<Grant>>& grants,
                          std::vector<std::string>& found) const;
  void find_double_grants_of(const std::string& uuid, const std::vector<Change>& changes,
                             std::vector<std::string>& found) const;
  void find_sessions_without_lease(const std::map<Key, std::vector<Grant>>& grants,
                                   std::vector<std::string>& found) const;
  void find_new_processes(const std::map<Key, std::vector<Grant>>& grants,
                          std::vector<std::string>& found) const;

  std::map<std::string, uint64_t> memory_;  // bytes, by GPU UUID
  std::map<Key, OnNode> leases_;
  std::map<std::string, Run> runs_;          // by boot id
  std::map<std::string, std::string> boot_;  // node -> boot id of its present poold
  std::vector<Session> sessions_;
  std::map<std::pair<std::string, uint64_t>, size_t> running_;  // (node, session) -> index in sessions_
  std::vector<std::string> violations_;
};

// Parses the "time" of a log line; 0 if it is malformed.
int64_t milliseconds_of(const std::string& time);

}  // namespace gpupool::testing
