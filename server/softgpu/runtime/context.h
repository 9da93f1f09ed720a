// A CUDA context on one device: its streams and their order, its sticky error, its limits, and the objects
// that are destroyed with it.
//
// A primary context is one object for the life of the process; it is inactive until it is retained, and its
// handle never changes. A created context is active from the start and destroyed once. A green context is the
// primary context on a subset of the device's multiprocessors: it has its own streams, and shares modules,
// memory, limits and errors with the primary context (root()). Thread-safe. Calls on a destroyed or reset
// context return CUDA_ERROR_CONTEXT_IS_DESTROYED.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <unordered_set>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/hardware_queue.h"
#include "server/softgpu/runtime/op.h"
#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu {

class Device;
class Memory;

class Context final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::context;
  Context(Device& device, bool primary, unsigned flags);
  // Makes a green context of the device's primary context.
  Context(Device& device, std::shared_ptr<const Multiprocessors> multiprocessors);

  Device& device() const { return device_; }
  bool primary() const { return primary_; }
  bool green() const { return multiprocessors_ != nullptr; }
  // The owner of modules, memory and settings: the primary context of a green one, else this context.
  Context& root() { return *root_; }
  const Context& root() const { return *root_; }
  const std::shared_ptr<const Multiprocessors>& multiprocessors() const {
    return multiprocessors_;
  }  // null: all
  int multiprocessor_count() const;
  std::atomic<uint64_t> green_handle{0};  // handle from cuGreenCtxCreate; 0: not a green context
  uint64_t handle() const { return handle_; }
  void set_handle(uint64_t handle) { handle_ = handle; }
  uint64_t id() const { return id_; }
  std::atomic<int> attached{0};  // calls of cuCtxAttach minus those of cuCtxDetach

  // --- Life cycle ---
  // Makes the context usable. CUDA_ERROR_OUT_OF_MEMORY if the device lacks the memory that a context reserves
  // (rule context_memory).
  CUresult activate();
  bool active() const { return active_.load(std::memory_order_acquire); }
  // Waits for all work, frees everything that belongs to the context, and clears its error.
  void tear_down();
  // The number of activations. Caches of a context's objects compare it to detect a reset.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // True from the beginning of tear_down() to the next activate(). Operations that wait for a value give up
  // meanwhile.
  bool ending() const { return ending_.load(std::memory_order_acquire); }
  // CUDA_SUCCESS, the sticky error, or CUDA_ERROR_CONTEXT_IS_DESTROYED for an inactive context.
  CUresult check() const { return active() ? error() : CUDA_ERROR_CONTEXT_IS_DESTROYED; }

  // --- The sticky error ---
  CUresult error() const {
    const int own = error_.load(std::memory_order_acquire);
    return static_cast<CUresult>(
        own != CUDA_SUCCESS || root_ == this ? own : root_->error_.load(std::memory_order_acquire));
  }
  bool failed() const { return error() != CUDA_SUCCESS; }
  void fail(CUresult error);  // keeps the first error

  // --- Streams --- Create a stream or an event with a handle. `shared`: the state of an interprocess event,
  // else null. CUDA_ERROR_OUT_OF_MEMORY: too many handles or interprocess events.
  CUresult create_stream(unsigned flags, int priority, CUstream* stream);
  CUresult create_event(unsigned flags, CUevent* event);
  CUresult adopt_event(unsigned flags, std::shared_ptr<SharedEvent> shared, CUevent* event);
  void destroy_stream(Stream& stream);
  Ref<Stream> legacy_stream();
  // The calling thread's default stream, created by the first call.
  Ref<Stream> per_thread_stream();
  void drop_per_thread_stream(Stream& stream);

  // Submits the operation to the stream, ordered behind the stream's last one, behind those that the legacy
  // default stream's rules require, and behind `also_after` if given. Blocks while the stream's hardware
  // queue is full. While the stream is captured, adds a node to the graph instead.
  CUresult enqueue(Stream& stream, const Ref<Op>& op, Op* also_after = nullptr);
  // Orders a graph launch like enqueue(): `begin` follows earlier work, later work follows `end`. The caller
  // submits both. `price` in nanoseconds is charged to the calling thread.
  CUresult enqueue_graph_launch(Stream& stream, const Ref<Op>& begin, const Ref<Op>& end, uint64_t price);
  // Submits the operation behind everything that the context has queued (cuCtxRecordEvent). With `barrier`,
  // later work waits for it (cuCtxWaitEvent).
  CUresult enqueue_behind_all(const Ref<Op>& op, bool barrier);
  // Runs the operation once everything that the context has queued is done. Later work does not wait for it,
  // but synchronize() does.
  void run_when_done(const Ref<Op>& op);
  // Wait for all work of the context or of one stream, write the kernels' printf output to stdout, trim the
  // memory pools, and return the context's error.
  CUresult synchronize();
  CUresult synchronize(Stream& stream);
  // Waits for all work with the context's lock held, so that other threads cannot enqueue meanwhile. `price`
  // in nanoseconds is charged after the wait.
  void synchronize_locked(uint64_t price = 0);
  // Charges an event query; with the context's lock held if rule event_calls_lock is on.
  void charge_event_query();
  // Makes sure that each thread of a kernel has `bytes` of local memory. If that is more than before, waits
  // for all work with the context's lock held (rule lazy_loading) and takes device memory (rule
  // context_memory), or fails with CUDA_ERROR_OUT_OF_MEMORY.
  CUresult reserve_local_memory(uint32_t bytes);
  // True if the stream, or the context, has no incomplete work. The former charges an event query.
  bool idle(Stream& stream);
  bool idle();
  // Invalidates the captures of the context's streams, or only of those that synchronise with the legacy
  // default stream. Returns false if there are none.
  bool invalidate_captures(bool blocking_only = false);
  // Writes the kernels' printf output to stdout and the messages of failed assertions to stderr.
  static void write_device_output();
  static void write_assertions();  // only the assertions
  // Waits until all operations are complete; `blocking` waits without spinning. Charges one wake-up if the
  // thread had to wait.
  void wait_for(std::span<const Ref<Op>> ops, bool blocking = false) const;
  void charge_wakeup(bool spun) const;
  bool spins() const { return (flags() & CU_CTX_SCHED_MASK) != CU_CTX_SCHED_BLOCKING_SYNC; }

  // --- Objects destroyed with the context, by handle ---
  void add_child(uint64_t handle);
  void remove_child(uint64_t handle);

  // --- Settings ---
  unsigned flags() const { return root_->flags_.load(std::memory_order_relaxed); }
  void set_flags(unsigned flags) { root_->flags_.store(flags, std::memory_order_relaxed); }
  CUresult limit(CUlimit limit, size_t* value) const;
  CUresult set_limit(CUlimit limit, size_t value);
  uint32_t stack_bytes() const {
    return root_->stack_bytes_.load(std::memory_order_relaxed);
  }  // CU_LIMIT_STACK_SIZE
  std::atomic<int> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  std::atomic<int> shared_config{CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE};
  CUresult enable_peer(Context& peer);
  CUresult disable_peer(Context& peer);
  // True if kernels may use memory of the context with this handle (cuCtxEnablePeerAccess).
  bool has_peer(uint64_t handle) const;

 private:
  ~Context() override;
  Ref<Stream> make_stream(unsigned flags, int priority, bool legacy);
  HardwareQueue& assign_queue();
  void enter_queue(Stream& stream, Op& first, Op& last);
  CUresult order(Stream& stream, Op& first, const Ref<Op>& last, uint64_t price);
  void collect_all(std::vector<Ref<Op>>& ops);
  void collect_for(Stream& stream, std::vector<Ref<Op>>& ops);
  static void push_last(Stream& stream, std::vector<Ref<Op>>& ops);
  void forget_stream(Stream& stream);
  CUresult wait_all(const std::vector<Ref<Op>>& ops);
  void reset_settings();
  // With mutex_ held:
  CUresult take_local_memory(uint32_t bytes);
  CUresult take_for_limit(size_t value, size_t at_first, std::shared_ptr<Memory>* memory);

  Device& device_;
  Context* const root_;  // this, or the device's primary context, which is never destroyed
  const bool primary_;
  const std::shared_ptr<const Multiprocessors> multiprocessors_;
  uint64_t handle_ = 0;
  const uint64_t id_;
  std::atomic<unsigned> flags_;
  std::atomic<bool> active_{false};
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> error_{CUDA_SUCCESS};

  std::mutex context_mutex_;  // the context's lock: guards the members down to greens_
  std::vector<HardwareQueue> queues_;
  const uint32_t queue_limit_;
  const bool issues_in_order_;
  std::atomic<uint32_t> streams_made_{0};  // atomic, for assigning queues in turn
  Ref<Stream> legacy_;
  std::vector<Ref<Stream>> streams_;  // created and per-thread ones
  // Last operations of destroyed streams, and operations behind all work.
  struct Orphan {
    Ref<Op> op;
    bool blocking;
  };
  std::vector<Orphan> orphans_;
  Ref<Op> barrier_;                   // precedes all later operations
  std::vector<Ref<Context>> greens_;  // active green contexts; their locks are taken after this one

  mutable std::mutex mutex_;  // guards the members below
  std::unordered_set<uint64_t> children_;
  std::array<size_t, CU_LIMIT_MAX> limits_{};
  std::atomic<uint32_t> stack_bytes_{0};
  std::atomic<uint32_t> local_bytes_{0};  // reserved local memory per thread
  std::set<uint64_t> peers_;              // handles of contexts with peer access enabled
  // Device memory reserved for the context itself, for local memory, and for raised limits; null if none, or
  // if rule context_memory is off.
  std::shared_ptr<Memory> own_memory_, local_memory_, printf_memory_, heap_memory_;
};

// The calling thread's context stack. set_current_context(nullptr) pops it, as cuCtxSetCurrent does.
// current_context() returns null if it is empty.
Ref<Context> current_context();
void set_current_context(Ref<Context> context);
void push_context(Ref<Context> context);
Ref<Context> pop_context();  // null when the stack is empty

}  // namespace gpupool::softgpu
