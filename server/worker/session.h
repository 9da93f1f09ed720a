// One client's session in its worker process, from the end of the hello to the end of the connection.
//
// The client is not trusted: whatever it sends ends in a CUDA error or in the end of this session. run_session()
// returns when the client has left, or was made to leave, and its objects are freed. Where the device does not let go of
// them in time (a kernel that never ends) it leaves the process with _exit(): the driver frees what a process held.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/compression/governor.h"
#include "protocol/image/name.h"
#include "protocol/transport/transport.h"
#include "server/quota/partitions.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"
#include "server/worker/control.h"
#include "server/worker/visible_devices.h"

namespace gpupool::worker {

class Bandwidth;

// Address of a driver function of the device library; null where it has none.
using SymbolLookup = std::function<void*(const char* name)>;

// The rest of a bulk connection's opening: the server's answer to the hello, and the upgrade.
using WelcomeBulk = std::function<Result<void>(transport::Connection&, transport::Deadline)>;
// `peer_copy`: of another server, the copy to the device that it has come with the key of.
using BulkSink = std::function<void(std::unique_ptr<transport::Connection>, std::optional<uint64_t> peer_copy)>;

// Bytes of a device's memory in use; nullopt: nothing tells.
struct MemoryUse {
  std::optional<uint64_t> process;  // by this process
  std::optional<uint64_t> device;   // by all processes
};

// Where the session's use is written down, and its limits stand. Null in tests that need none.
struct Usage {
  // Counters that nobody reads where there is no page.
  quota::SessionPage& counters() const {
    static quota::SessionPage unread;
    return page ? **page : unread;
  }
  // One more than the session has `used` is within the tenant's limit, and else counted as refused.
  bool allows(std::atomic<uint32_t> quota::Account::*limit, uint32_t used) const {
    const uint32_t most = account ? ((**account).*limit).load(std::memory_order_relaxed) : 0;
    if (most == 0 || used < most) return true;
    quota::count(counters().over_quota);
    return false;
  }
  // Bytes that may wait in this process for their execution: the tenant's limit, or `otherwise` where that is less.
  uint64_t most_queued(uint64_t otherwise) const {
    const uint64_t most = account ? (*account)->queued_bytes.load(std::memory_order_relaxed) : 0;
    return most == 0 ? otherwise : std::min(most, otherwise);
  }
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::shared_ptr<quota::SharedPage<quota::Account>> account;
  uint32_t slot = 0;  // of the account
};

struct SessionStart {
  std::unique_ptr<transport::Connection> connection;  // after the hello in both directions
  SymbolLookup symbol;                                // cuInit has succeeded
  std::function<MemoryUse(int device)> memory_use;    // memory_use.h; by the library's numbers, may be null
  VisibleDevices visible;                             // which of the library's devices the session sees
  std::vector<uint64_t> granularity;                  // by the library's numbers: Device.granularity of the hello; 0: no virtual memory
  uint64_t range_base = 0;                            // reserved by cuMemAddressReserve; the session takes it over
  uint64_t range_size = 0;
  std::chrono::milliseconds dead_peer_timeout{15000};  // longest time without progress in sending
  transport::RdmaOptions rdma;                         // for connections to other servers; `use` is found out
  bool direct_memory = true;  // false: copies are staged even where the CPU reaches the device's memory
  bool capture_output = true;                          // descriptors 1 and 2 become the client's
  // Where the session's bulk connections go from now on, when their client has said its hello; an empty sink: nowhere. May
  // be null.
  std::function<void(BulkSink)> bulk_connections;
  WelcomeBulk welcome_bulk;
  std::string bulk_token;  // of which the keys of copies from other servers are derived
  compression::Policy compression = compression::Policy::off;  // of what the client gets on bulk connections: its wish
  Usage usage;
  std::vector<quota::Groups> groups;                  // of each device's multiprocessors; none, or 0: all
  std::shared_ptr<Bandwidth> bandwidth;               // run_session() makes it
  Control* control = nullptr;                          // to poold, outlives the session; null: there is none
  image::Nonce image_nonce{};                          // as told in the hello
  uint64_t largest_image = 0;                          // that poold keeps; 0: none
  uint64_t server_id = 0, session_number = 0;          // of names of what sessions share
  bool oversubscribes = false;                         // device memory may be moved to host memory, and back
  int stop_descriptor = -1;                            // at its end poold shuts down: the client is told, the session ends
};

// The exit status for the worker process: 0 after an orderly end (goodbye, or the client closed the connection).
int run_session(SessionStart start);

}  // namespace gpupool::worker
