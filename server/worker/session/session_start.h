// The arguments of a session: the connection, the device library, limits and options. The worker fills them
// in while it answers the hello, and passes them to run_session().
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/compression/governor.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/images/name.h"
#include "protocol/transport/transport.h"
#include "server/quota/partitions.h"
#include "server/quota/refusal.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"
#include "server/worker/device/visible_devices.h"
#include "server/worker/session/control.h"
#include "server/worker/session/resumption.h"

namespace gpupool::worker {

class Bandwidth;

// Returns the address of a function of the device library, or null if it has none of that name.
using SymbolLookup = std::function<void*(const char* name)>;

// Completes the opening of a bulk connection: sends the reply to the hello and upgrades the connection.
using WelcomeBulk = std::function<Result<void>(transport::Connection&, transport::Deadline, bool resumable)>;
// `peer_copy`: the connection is from another server, which has presented the key of this copy to the device.
// `link`: number of a connection that the client can resume, or 0.
using BulkSink = std::function<void(std::unique_ptr<transport::Connection>, std::optional<uint64_t> peer_copy,
                                    uint64_t link)>;

// Bytes of a device's memory in use; nullopt: unknown.
struct MemoryUse {
  std::optional<uint64_t> process;  // by this process
  std::optional<uint64_t> device;   // by all processes
};

// Returns the memory that a context has taken between the two reports. `freed`: by the tenant's other
// sessions meanwhile, which would hide as much of it.
uint64_t context_growth(const MemoryUse& before, const MemoryUse& after, uint64_t freed);

// The first device's primary context, which the worker has made while it was idle (device/idle_context.h).
// The session releases it once it has a context of its own. Executor's thread.
constexpr CUdevice kIdleContextDevice = 0;
struct IdleContext {
  bool held() const { return primary_release != nullptr; }
  void release() {
    if (const auto call = std::exchange(primary_release, nullptr)) call(kIdleContextDevice);
  }
  CUresult (*primary_release)(CUdevice) = nullptr;  // cuDevicePrimaryCtxRelease
  uint64_t bytes = 0;                               // device memory that it takes
};

// The shared pages that hold the session's counters and its tenant's limits. Null in tests that need none.
struct Usage {
  // Returns counters that are not read by anyone if there is no page.
  quota::SessionPage& counters() const {
    static quota::SessionPage unread;
    return page ? **page : unread;
  }
  // True if one more than the `used` items is within the tenant's limit; otherwise notes a refusal.
  bool allows(quota::KindId kind, std::atomic<uint32_t> quota::Account::*limit, uint32_t used) const {
    const uint32_t most = account ? ((**account).*limit).load(std::memory_order_relaxed) : 0;
    if (most == 0 || used < most) return true;
    note_refusal({.kind = kind, .asked = 1, .used = used, .limit = most});
    return false;
  }
  // Counts the refusal, for monitoring, and tells the client if it takes refusals.
  void note_refusal(const quota::Refusal& refusal) const {
    quota::count(counters().over_quota);
    if (*refused) (*refused)(refusal);
  }
  // Returns how many bytes may wait in this process for execution: the lower of the tenant's limit and
  // `otherwise`.
  uint64_t most_queued(uint64_t otherwise) const {
    const uint64_t most = account ? (*account)->queued_bytes.load(std::memory_order_relaxed) : 0;
    return most == 0 ? otherwise : std::min(most, otherwise);
  }
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::shared_ptr<quota::SharedPage<quota::Account>> account;
  uint32_t slot = 0;  // of this session in the account
  // Shared by all copies; set before the session's first command.
  std::shared_ptr<quota::RefusalListener> refused = std::make_shared<quota::RefusalListener>();
};

constexpr uint64_t kMostHistoryBytes = uint64_t{2} << 30;

struct SessionStart {
  std::unique_ptr<transport::Connection> connection;    // after the hello in both directions
  transport::ResumableConnection* resumable = nullptr;  // `connection`, if the client may resume it
  Resumption::Terms resume;                             // if it may
  SymbolLookup symbol;                                  // cuInit has been called successfully
  // memory_use.h; takes the library's device numbers; may be null
  std::function<MemoryUse(int device)> memory_use;
  IdleContext idle_context;
  VisibleDevices visible;  // which of the library's devices the session sees
  // Device.granularity of the hello, by the library's numbers; 0: no virtual memory
  std::vector<uint64_t> granularity;
  uint64_t range_base = 0;  // reserved by cuMemAddressReserve; the session takes ownership
  uint64_t range_size = 0;
  std::chrono::milliseconds dead_peer_timeout{15000};  // longest time without progress in sending
  transport::RdmaOptions rdma;  // for connections to other servers; `use` is determined per connection
  bool direct_memory = true;    // false: copies are staged even if the CPU can access device memory
  bool capture_output = true;   // descriptors 1 and 2 are redirected to the client
  // Sets the sink that gets the session's bulk connections after their hello; an empty sink: none are
  // accepted any more. May be null.
  std::function<void(BulkSink)> bulk_connections;
  WelcomeBulk welcome_bulk;
  std::string bulk_token;  // the keys of copies from other servers are derived from it
  // For data to the client on bulk connections, as the client requested.
  compression::Policy compression = compression::Policy::off;
  Usage usage;
  std::vector<quota::Groups> groups;  // the session's groups of multiprocessors, by device; empty or 0: all
  std::shared_ptr<Bandwidth> bandwidth;  // set by run_session()
  Control* control = nullptr;            // to poold; must outlive the session; null: none
  image::Nonce image_nonce{};            // as sent in the hello
  uint64_t largest_image = 0;            // largest image that poold caches, in bytes; 0: no cache
  // Part of the names of memory and events shared between processes.
  uint64_t server_id = 0, session_number = 0;
  bool takes_quota_refusals = false;  // the client takes MessageKind::quota_refusal
  bool can_migrate = false;           // the client takes MessageKind::migration_wish
  bool wants_timeline = false;        // the client takes MessageKind::timeline
  // Limit of what the session keeps for a migration, with images.
  uint64_t most_history_bytes = kMostHistoryBytes;
  bool oversubscribes = false;  // device memory may be moved to host memory and back
  int stop_descriptor = -1;     // readable when poold shuts down, which ends the session; -1: none

  // Returns the session's groups of multiprocessors on a device; 0: all.
  quota::Groups groups_of(int device) const {
    return static_cast<size_t>(device) < groups.size() ? groups[static_cast<size_t>(device)] : 0;
  }
};

}  // namespace gpupool::worker
