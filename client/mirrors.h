// Memory that the program's host code and its kernels use at the same address: managed memory, __managed__ variables, and pinned
// memory that kernels may reach where the server cannot map it (ADR 0028). The two live on two machines, so every block of it is
// where it was used last.
//
// A block is on the device (the program's pages cannot be accessed: a fault brings it, page_faults.h), shared (both have the
// same; the program may read), dirty (the program may write) or fresh (so far used by the program alone, as far as it used it).
// Before the device gets work that might use a block, what the program has written goes there, in front of the work. Before the program
// gets a block, all work that might have written it is waited for: the host may use the memory whenever CUDA says that it may, which
// is when no kernel is running that could. A host function waits for nothing: work that might use the block is done, or queued behind the function.
// So the block goes back to the device when the function returns.
//
// Any thread. One mutex, held while blocks move, but not while work on the device is waited for.
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

#include "client/host_pages.h"
#include "client/page_faults.h"
#include "client/session.h"

namespace gpupool::client {

enum class Attachment : uint8_t { global, host, stream };

class Mirrors {
 public:
  struct Mirror;
  using Lock = std::unique_lock<std::mutex>;

  // Is there such memory? One load: what every launch pays.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Shows the program memory that the server has mapped, or will have before anything else, at an address of the session's.
  CUresult add_managed(Session& session, Context& context, uint64_t address, uint64_t bytes, Attachment attachment);
  // Memory that the program has in its pages already (AddressSpace::reserve_host).
  CUresult add_pinned(Session& session, Context& context, uint64_t address, uint64_t bytes);
  // A module's variable: anywhere. `context` may be null.
  CUresult add_variable(Session& session, Context* context, uint64_t address, uint64_t bytes);
  void remove(uint64_t address);
  void forget_context(const Context& context);

  struct About {
    uint64_t address = 0, bytes = 0;  // all of it
    Session* session = nullptr;
    bool managed = false;
  };
  // What holds the address; nullopt: nothing here.
  std::optional<About> find(uint64_t address) const;

  // Before work that may use whatever the device can reach: until the lock is gone no block moves, so the work has to be
  // queued under it. *result: whether what the program has written could be sent. The stream is resolved.
  [[nodiscard]] Lock before_work(Context& context, CUstream stream, CUresult* result);
  // A copy or fill that writes, while it is being queued. Other threads' accesses to what it writes wait until this is gone.
  class Use {
   public:
    Use() = default;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    friend Mirrors;
    Context* context_ = nullptr;
    uint64_t address_ = 0, bytes_ = 0;
  };
  // Before a copy or fill of these bytes, some of which may be here. `write`: kept until the work is queued; null: it only reads.
  CUresult before_use(Context& context, uint64_t address, uint64_t bytes, Use* write);
  // After a host function. Its stream goes on when the own streams of these contexts have done what they got so far.
  std::vector<Context*> after_host_function();
  // Is any byte of it here?
  bool touches(uint64_t address, uint64_t bytes) const;
  // `context`: the one that the call is made in.
  CUresult attach(const Context& context, CUstream stream, uint64_t address, Attachment attachment);
  // Waits for the stream and brings it to the host, to be used by the program and by system calls.
  CUresult bring(Context& context, CUstream stream, uint64_t address, uint64_t bytes);
  // The number of the context's last touch that is queued.
  uint64_t touches_of(const Context& context) const;
  // After a wait that saw everything done that the context had been given: `before` is its touches then.
  static void waited(Context& context, uint64_t before);

 private:
  friend Mirrors& mirrors();
  enum class State : uint8_t { device, shared, dirty, fresh };
  using Map = std::map<uint64_t, std::unique_ptr<Mirror>>;

  static page_faults::Answer serve(uint64_t address, page_faults::Access access, bool in_host_function);
  page_faults::Answer bring_block(uint64_t address, page_faults::Access access, bool wait);
  CUresult add(std::unique_ptr<Mirror> mirror, HostPages::Use use, State state);
  Mirror* containing(uint64_t address) const;
  HostPages* zone(Session& session);
  CUresult wait_for_device(Lock& lock, uint64_t address);
  bool is_behind(const Mirror& mirror, const Context* but = nullptr) const;
  Context* context_of(const Mirror& mirror) const;
  CUresult fetch(Mirror& mirror, size_t first, size_t last);
  CUresult push(Mirror& mirror, size_t first, size_t last, State state);
  static CUresult send(const Mirror& mirror, Context& context, uint64_t begin, uint64_t end);
  bool set(Mirror& mirror, size_t first, size_t last, State state);
  void note_host(Mirror& mirror);
  void note_context(const Context& context);
  void lend(const Mirror& mirror, size_t first, size_t last);
  void drop(Map::iterator mirror);
  template <class Visit>
  void for_each_part(uint64_t address, uint64_t bytes, Visit&& visit);

  mutable std::mutex mutex_;
  std::condition_variable queued_;  // a Use is gone
  std::atomic<bool> any_{false};
  Map mirrors_;                        // by their first page
  std::vector<Mirror*> with_host_;     // those of which some block is not on the device
  std::vector<Mirror*> of_streams_;    // attached to one
  std::map<Session*, std::unique_ptr<HostPages>> zones_;
  std::vector<uint64_t> contexts_;     // handles of those that have given the device work
  std::atomic<uint64_t> last_touch_{0};
  std::vector<std::pair<uint64_t, uint64_t>> lent_;  // addresses of blocks that were brought for host functions
  std::set<uint64_t> lenders_;                       // handles of their contexts so far
};

Mirrors& mirrors();

// What was advised of memory that is gone. client/calls/managed.cc
void forget_advice(uint64_t address, uint64_t bytes);

}  // namespace gpupool::client
