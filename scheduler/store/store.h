// Interface of the scheduler's durable key-value store and of the election of a leader among several
// schedulers. Only the leader of the current term can write; a write is atomic. Implementations: sqlite/,
// etcd/; open/ makes them.
//
// Used by service/engine.h on its storing thread. Calls may block; one thread at a time, except for members
// marked "any thread".
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "scheduler/store/write.h"

namespace gpupool::scheduler {

using Entry = std::pair<std::string, std::string>;

class Store {
 public:
  virtual ~Store() = default;

  // Tries for at most `timeout` to become the leader. Returns the term, which is greater than all earlier
  // terms of this store. ErrorCode::refused: another scheduler leads. ErrorCode::unavailable: the store
  // cannot be reached or used. `address` is published for clients to find this scheduler.
  virtual Result<uint64_t> campaign(const std::string& address, std::chrono::milliseconds timeout) = 0;
  // Gives up the leadership. No effect if this scheduler does not lead.
  virtual void resign() = 0;
  // Returns true if, as far as this process knows, it has been the leader without interruption since
  // campaign(). Only write() is authoritative. Any thread.
  virtual bool leads() const = 0;
  // Returns the leader's address as of the last campaign(); null if unknown. Any thread.
  virtual std::optional<std::string> leader() const = 0;

  // Returns all entries whose keys begin with `prefix`, in the order of their keys.
  virtual Result<std::vector<Entry>> all(const std::string& prefix) = 0;
  // Commits all writes durably, or none. ErrorCode::refused: `term` is over, and nothing was written.
  // ErrorCode::unavailable: the outcome is unknown, so the caller must step down as the leader.
  virtual Result<void> write(const std::vector<Write>& writes, uint64_t term) = 0;

  virtual std::string describe() const = 0;  // the store's address, for messages
};

}  // namespace gpupool::scheduler
