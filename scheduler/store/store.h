// Where the scheduler keeps what must outlive it, and how several schedulers agree on one leader: entries under keys, written by the leader
// of the present term alone, all of a transaction or nothing.
//
// One thread at a time calls, and may wait; what is marked so may be called by any thread at any time. Kinds: sqlite/, etcd/.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"
#include "scheduler/store/write.h"

namespace gpupool::scheduler {

using Entry = std::pair<std::string, std::string>;

class Store {
 public:
  virtual ~Store() = default;

  // Waits at most that long to become the leader. The term: greater than all before it of this store. ErrorCode::refused: somebody
  // else leads; unavailable: the store cannot be reached or used. `address`: where clients find this scheduler.
  virtual Result<uint64_t> campaign(const std::string& address, std::chrono::milliseconds patience) = 0;
  // Somebody else may lead from now on. Does nothing for one who does not lead.
  virtual void resign() = 0;
  // Whether this one has been the leader without a break since campaign(), as far as it can know; write() is the last word. Any thread.
  virtual bool leads() const = 0;
  // Where the leader is to be found, where known; who campaigns learns of it. Any thread.
  virtual std::optional<std::string> leader() const = 0;

  // By key.
  virtual Result<std::vector<Entry>> all(const std::string& prefix) = 0;
  // All of them, lasting, or none. ErrorCode::refused: `term` is over, and nothing was written; unavailable: whether it was written is
  // not known, so that this one must not go on as the leader.
  virtual Result<void> write(const std::vector<Write>& writes, uint64_t term) = 0;

  virtual std::string describe() const = 0;  // for people: which store it is
};

// "sqlite:FILE", "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]", "etcds://..." with TLS: `tls` has this side's files. etcd:// to another host needs `insecure`.
Result<std::unique_ptr<Store>> open_store(const std::string& text, const transport::TlsOptions& tls = {}, bool insecure = false);
// What open_store() refuses because of the address alone (ErrorCode::invalid); makes and opens nothing.
Result<void> check_store(const std::string& text, bool insecure);

}  // namespace gpupool::scheduler
