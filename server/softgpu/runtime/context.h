// A CUDA context on one device: its streams and their order, its error, its limits, and what is destroyed
// with it.
//
// A primary context is one object for the life of the process, inactive until it is retained; its handle
// never changes. A created context is active from the start and destroyed once. A green one is the primary context on some
// of the device's multiprocessors: it has its own streams, and modules, memory, limits and errors in common with it (root()).
// Thread-safe. After destruction or reset every use ends in CUDA_ERROR_CONTEXT_IS_DESTROYED.
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

#include "protocol/cuda/cuda_header.h"
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
  // A green one, of the device's primary context.
  Context(Device& device, std::shared_ptr<const Multiprocessors> multiprocessors);

  Device& device() const { return device_; }
  bool primary() const { return primary_; }
  bool green() const { return multiprocessors_ != nullptr; }
  // What owns modules, memory and settings: the primary context of a green one.
  Context& root() { return *root_; }
  const Context& root() const { return *root_; }
  const std::shared_ptr<const Multiprocessors>& multiprocessors() const { return multiprocessors_; }  // null: all
  int multiprocessor_count() const;
  std::atomic<uint64_t> green_handle{0};  // of a green one: cuGreenCtxCreate's
  uint64_t handle() const { return handle_; }
  void set_handle(uint64_t handle) { handle_ = handle; }
  uint64_t id() const { return id_; }
  std::atomic<int> attached{0};  // cuCtxAttach without cuCtxDetach

  // --- Life ---
  // CUDA_ERROR_OUT_OF_MEMORY: the device has not the memory that a context takes.
  CUresult activate();
  bool active() const { return active_.load(std::memory_order_acquire); }
  // Waits for all work, then gives back everything that belongs to the context. The error is forgotten.
  void tear_down();
  // Counts activations: what a thread caches about a context is good for one of them.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  bool ending() const { return ending_.load(std::memory_order_acquire); }
  // Success, the error that a kernel left, or CUDA_ERROR_CONTEXT_IS_DESTROYED.
  CUresult check() const { return active() ? error() : CUDA_ERROR_CONTEXT_IS_DESTROYED; }

  // --- The sticky error ---
  CUresult error() const {
    const int own = error_.load(std::memory_order_acquire);
    return static_cast<CUresult>(own != CUDA_SUCCESS || root_ == this ? own : root_->error_.load(std::memory_order_acquire));
  }
  bool failed() const { return error() != CUDA_SUCCESS; }
  void fail(CUresult error);  // the first one stays

  // --- Streams ---
  // Makes a stream or event known under a handle.
  CUresult create_stream(unsigned flags, int priority, CUstream* stream);
  CUresult create_event(unsigned flags, CUevent* event);
  CUresult adopt_event(unsigned flags, std::shared_ptr<SharedEvent> shared, CUevent* event);  // another process's
  void destroy_stream(Stream& stream);
  Ref<Stream> legacy_stream();
  Ref<Stream> per_thread_stream();
  void drop_per_thread_stream(Stream& stream);

  // Queues the operation behind the stream's last one, and behind what the legacy default stream's rules and
  // `also` name.
  CUresult enqueue(Stream& stream, const Ref<Op>& op, Op* also = nullptr);
  // As enqueue, for operations between two markers: `begin` is ordered but not submitted, later work follows
  // `end`. `price`: nanoseconds, charged to the caller.
  CUresult enqueue_span(Stream& stream, const Ref<Op>& begin, const Ref<Op>& end, uint64_t price);
  // Queues it behind everything that the context has queued (cuCtxRecordEvent); later work waits for it if
  // `barrier`.
  CUresult enqueue_behind_all(const Ref<Op>& op, bool barrier);
  // Runs it when everything that the context has queued is done. Other work does not wait for it, but synchronize() does.
  void run_when_done(const Ref<Op>& op);
  // Waits; writes out device printf text; returns the context's error.
  CUresult synchronize();
  CUresult synchronize(Stream& stream);
  // Waits with the context's lock held, so that other threads cannot enqueue meanwhile. `price`: nanoseconds, charged after the wait.
  void synchronize_locked(uint64_t price = 0);
  // Waits while another thread holds the context's lock, as calls about events do, and charges a query.
  void pass_lock();
  // A kernel needs so many bytes per thread. If the context has less, waits with the lock held, and takes more of the device's memory.
  CUresult reserve_local_memory(uint32_t bytes);
  bool idle(Stream& stream);
  bool idle();
  // A call that no capture of the context's streams survives; false: there is none.
  bool spoil_captures(bool blocking_only = false);
  // What kernels printed so far, to stdout.
  static void write_device_output();
  static void write_assertions();  // to stderr
  // Waits until all are done, then charges one wake-up if the thread had to wait.
  void wait_for(std::span<const Ref<Op>> ops, bool blocking = false) const;
  void charge_wakeup(bool spun) const;
  bool spins() const { return (flags() & CU_CTX_SCHED_MASK) != CU_CTX_SCHED_BLOCKING_SYNC; }

  // --- Things that die with the context, by handle ---
  void adopt(uint64_t handle);
  void disown(uint64_t handle);

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
  // Whether kernels may use memory of the context with this handle.
  bool has_peer(uint64_t handle) const;

 private:
  ~Context() override;
  HardwareQueue& assign_queue();
  void enter_queue(Stream& stream, Op& first, Op& last);
  CUresult order(Stream& stream, Op& first, const Ref<Op>& last, uint64_t price);
  void collect_all(std::vector<Ref<Op>>& ops);
  void collect_for(Stream& stream, std::vector<Ref<Op>>& ops);
  static void push_last(Stream& stream, std::vector<Ref<Op>>& ops);
  void forget_stream(Stream& stream);
  CUresult wait_all(const std::vector<Ref<Op>>& ops);
  void reset_settings();
  CUresult take_local_memory(uint32_t bytes);  // this and the next: with mutex_ held
  CUresult take_for_limit(size_t value, size_t at_first, std::shared_ptr<Memory>* memory);

  Device& device_;
  Context* const root_;  // this one or the device's primary context, which stays
  const bool primary_;
  const std::shared_ptr<const Multiprocessors> multiprocessors_;
  uint64_t handle_ = 0;
  const uint64_t id_;
  std::atomic<unsigned> flags_;
  std::atomic<bool> active_{false};
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> error_{CUDA_SUCCESS};

  std::mutex order_mutex_;  // the order of all streams of the context
  std::vector<HardwareQueue> queues_;
  const uint32_t queue_limit_;
  const bool issues_in_order_;
  std::atomic<uint32_t> streams_made_{0};  // streams take the queues in turn
  Ref<Stream> legacy_;
  std::vector<Ref<Stream>> streams_;  // created and per-thread ones
  // Last operations of destroyed streams, and operations behind everything.
  struct Orphan {
    Ref<Op> op;
    bool blocking;
  };
  std::vector<Orphan> orphans_;
  Ref<Op> barrier_;  // everything queued later comes after it
  std::vector<Ref<Context>> greens_;  // that are active; their order locks are taken after this one's

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_set<uint64_t> children_;
  std::array<size_t, CU_LIMIT_MAX> limits_{};
  std::atomic<uint32_t> stack_bytes_{0};
  std::atomic<uint32_t> local_bytes_{0};  // of local memory per thread, so far
  std::set<uint64_t> peers_;  // handles
  // What the context takes of the device's memory for itself, for local memory, and for limits that were raised; null where the rule is off.
  std::shared_ptr<Memory> own_memory_, local_memory_, printf_memory_, heap_memory_;
};

// The calling thread's stack of contexts.
Ref<Context> current_context();
void set_current_context(Ref<Context> context);
void push_context(Ref<Context> context);
Ref<Context> pop_context();  // null when the stack is empty

}  // namespace gpupool::softgpu
