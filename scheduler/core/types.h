// What goes into the scheduler's core and comes out of it. Values; any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/control/lease.pb.h"
#include "protocol/control/pool.pb.h"
#include "protocol/control/pool_admin.pb.h"
#include "scheduler/store/write.h"

namespace gpupool::scheduler {

using Time = int64_t;        // milliseconds, by the caller's clock, which never runs backwards
using LeaseId = std::string;  // 16 bytes
using Stream = uint64_t;     // a holder's or a node's connection; the caller gives the numbers, none twice; 0: none

struct Refusal {
  enum class Kind { invalid, exhausted, denied, busy };
  Kind kind;
  std::string reason;  // one line for a person
};

struct GrantedServer {
  std::string address;
  lease::Lease lease;  // unsigned; its times by the core's clock
};
struct Grant {
  LeaseId lease;
  std::vector<GrantedServer> servers;
  Time expires;
  uint32_t hold_ms;
};
struct QueuePlace {
  uint32_t place;
  uint32_t waiting;
  std::string why;
  Time arrived;  // for the ticket
};

struct ToHolder {
  Stream stream;
  std::variant<QueuePlace, Grant, pool::Ended, Refusal> what;
  bool last = false;  // the stream ends with it
};
struct ToNode {
  Stream stream;
  pool::NodeOrders orders;
  std::optional<Refusal> refusal;  // instead: the stream ends with it
};

// For the log and the audit.
struct Note {
  enum class Level { info, warning } level;
  const char* event;
  std::vector<std::pair<const char*, std::string>> fields;
};

struct Effects {
  std::vector<Write> writes;  // to be stored before anything else of it is said
  std::vector<ToHolder> holders;
  std::vector<ToNode> nodes;
  std::vector<Note> notes;
  bool empty() const { return writes.empty() && holders.empty() && nodes.empty() && notes.empty(); }
};

}  // namespace gpupool::scheduler
