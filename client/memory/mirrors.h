// Memory that host code and kernels use at the same address: managed memory, __managed__ variables, and
// pinned memory that kernels access but the server cannot map (ADR 0028). Client and device are two machines,
// so each block resides where it was used last.
//
// States of a block. device: valid on the device only; the program's pages are inaccessible, and a fault
// fetches the block (page_faults.h). shared: valid on both sides; the program may read. dirty: valid in the
// program only; the program may write. fresh: used only by the program so far; untouched pages are zero.
//
// Before the device gets work that may use a block, the program's changes are sent ahead of the work. Before
// the program gets a block, the client waits for all work that may have written it: CUDA lets the host use
// the memory only while no kernel runs that may use it. A host function must not wait: work that may use the
// block is complete or queued behind the function. So its blocks are fetched at once and sent back when it
// returns.
//
// Thread-safe. One mutex, held while blocks are transferred, but not while waiting for work on the device.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/memory/host_pages.h"
#include "client/memory/page_faults.h"
#include "client/session/session.h"

namespace gpupool::client {

enum class Attachment : uint8_t { global, host, stream };

class Mirrors {
 public:
  struct Mirror;
  using Lock = std::unique_lock<std::mutex>;

  // True if there is mirrored memory. Costs one atomic load at each launch.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Gives the program pages at an address of the session's range that the server has mapped, or will map
  // before later commands.
  CUresult add_managed(Session& session, Context& context, uint64_t address, uint64_t bytes,
                       Attachment attachment);
  // Takes over memory that already lies in host pages of the session's range (AddressSpace::reserve_host).
  CUresult add_pinned(Session& session, Context& context, uint64_t address, uint64_t bytes);
  // Adds a module's variable, at an address that the driver chose. `context` may be null.
  CUresult add_variable(Session& session, Context* context, uint64_t address, uint64_t bytes);
  void remove(uint64_t address);
  void forget_context(const Context& context);

  struct About {
    uint64_t address = 0, bytes = 0;  // of the whole contiguous range
    Session* session = nullptr;
    bool managed = false;
  };
  // Returns the mirrored memory that contains the address; nullopt: none does.
  std::optional<About> find(uint64_t address) const;

  // Call before queueing work that may use any memory of the device; the stream is resolved. Sends the
  // program's changes; *result is an error if that failed. Queue the work while holding the returned lock,
  // which keeps blocks from moving.
  [[nodiscard]] Lock before_work(Context& context, CUstream stream, CUresult* result);
  // A copy or fill that writes, while it is being queued. Accesses of other threads to the destination wait
  // until this object is destroyed.
  class PendingWrite {
   public:
    PendingWrite() = default;
    ~PendingWrite();
    PendingWrite(const PendingWrite&) = delete;
    PendingWrite& operator=(const PendingWrite&) = delete;

   private:
    friend Mirrors;
    Context* context_ = nullptr;
    uint64_t address_ = 0, bytes_ = 0;
  };
  // Call before a copy or fill of these bytes, some of which may be mirrored. `write`: for the destination;
  // keep it until the work is queued. Null: a source, which is only read.
  CUresult before_use(Context& context, uint64_t address, uint64_t bytes, PendingWrite* write);
  // Call after a host function: sends back the blocks that it used. The function's stream must wait until the
  // client's own streams of the returned contexts have done their present work.
  std::vector<Context*> after_host_function();
  // True if any of these bytes is mirrored.
  bool overlaps(uint64_t address, uint64_t bytes) const;
  // cuStreamAttachMemAsync. `context`: the context in which the call is made.
  CUresult attach(const Context& context, CUstream stream, uint64_t address, Attachment attachment);
  // Waits for the stream and fetches these bytes, for the program and for system calls, which fail with
  // EFAULT instead of raising SIGSEGV.
  CUresult fetch_to_host(Context& context, CUstream stream, uint64_t address, uint64_t bytes);
  // Returns the number of the context's last queued work that may use mirrored memory
  // (Context::last_mirror_use).
  uint64_t last_use_of(const Context& context) const;
  // Call after a wait that saw all earlier work of the context complete; `before`: the result of
  // last_use_of() before the wait.
  static void note_completed(Context& context, uint64_t before);

 private:
  friend Mirrors& mirrors();
  enum class State : uint8_t { device, shared, dirty, fresh };
  using Map = std::map<uint64_t, std::unique_ptr<Mirror>>;

  static page_faults::Answer handle_fault(uint64_t address, page_faults::Access access,
                                          bool in_host_function);
  page_faults::Answer fetch_block(uint64_t address, page_faults::Access access, bool wait);
  CUresult add(std::unique_ptr<Mirror> mirror, HostPages::Use use, State state);
  Mirror* containing(uint64_t address) const;
  HostPages* zone(Session& session);
  CUresult wait_for_device(Lock& lock, uint64_t address);
  bool device_may_use(const Mirror& mirror, const Context* but = nullptr) const;
  Context* context_of(const Mirror& mirror) const;
  CUresult fetch(Mirror& mirror, size_t first, size_t last);
  CUresult push(Mirror& mirror, size_t first, size_t last, State state);
  static CUresult send(const Mirror& mirror, Context& context, uint64_t begin, uint64_t end);
  bool set(Mirror& mirror, size_t first, size_t last, State state);
  void note_host(Mirror& mirror);
  void note_context(const Context& context);
  void note_fetched_for_host_function(const Mirror& mirror, size_t first, size_t last);
  void drop(Map::iterator mirror);
  template <class Visit>
  void for_each_part(uint64_t address, uint64_t bytes, Visit&& visit);

  mutable std::mutex mutex_;
  std::condition_variable queued_;  // notified when a PendingWrite is destroyed
  std::atomic<bool> any_{false};
  Map mirrors_;                                           // by first page
  std::vector<Mirror*> with_host_;                        // those with blocks that are not in state `device`
  std::vector<Mirror*> of_streams_;                       // those attached to a stream
  std::map<Session*, std::unique_ptr<HostPages>> zones_;  // by session; pages in the session's address range
  std::vector<uint64_t> contexts_;  // handles of contexts that have given the device work
  std::atomic<uint64_t> last_use_{0};
  // Addresses of blocks that were fetched for host functions.
  std::vector<std::pair<uint64_t, uint64_t>> fetched_for_host_functions_;
  std::set<uint64_t> fetching_contexts_;  // handles of the contexts that fetched them, ever
};

Mirrors& mirrors();

// Forgets cuMemAdvise settings of freed memory: client/api/managed.cc
void forget_advice(uint64_t address, uint64_t bytes);

}  // namespace gpupool::client
