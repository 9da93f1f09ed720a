// Types of the scheduler core's inputs and outputs (Effects), shared with service/engine.h. Values; any
// thread.
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

using Time = int64_t;         // milliseconds on the caller's monotonic clock
using LeaseId = std::string;  // 16 bytes
// The number of a client's or a node's connection, assigned by the caller and never reused. 0: none.
using Stream = uint64_t;

struct Refusal {
  enum class Kind { invalid, exhausted, denied, busy };
  Kind kind;
  std::string reason;  // one line for the user
};

struct GrantedServer {
  std::string address;
  lease::Lease lease;  // unsigned; times on the core's clock
};
struct GrantedMove {
  uint32_t server;  // index in Grant::servers
  GrantedServer to;
};
struct Grant {
  LeaseId lease;
  std::vector<GrantedServer> servers;
  std::vector<GrantedMove> moves;
  Time expires;
  uint32_t hold_ms;
};
struct QueuePlace {
  uint32_t place;
  uint32_t waiting;
  std::string why;
  Time arrived;  // goes into the ticket (service/lease_credentials.h)
};

struct ClientMessage {
  Stream stream;
  std::variant<QueuePlace, Grant, pool::Ended, Refusal> message;
  bool last = false;  // close the stream after this message
};
struct NodeMessage {
  Stream stream;
  pool::NodeOrders orders;
  std::optional<Refusal> refusal;  // if set, `orders` is ignored and the stream is closed
};

// A line for the log and the audit file.
struct Note {
  enum class Level { info, warning } level;
  const char* event;
  std::vector<std::pair<const char*, std::string>> fields;
};

struct Effects {
  std::vector<Write> writes;  // must be stored before the rest is published
  std::vector<ClientMessage> clients;
  std::vector<NodeMessage> nodes;
  std::vector<Note> notes;
  bool empty() const { return writes.empty() && clients.empty() && nodes.empty() && notes.empty(); }
};

}  // namespace gpupool::scheduler
