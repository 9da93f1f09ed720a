// Host functions of the client in its streams: the device's callback thread waits here until the client has run one.
//
// add(), keep() and their like belong to the executor's thread, done() is any thread's; run() is the device's callback, in which no driver call is allowed, so
// that telling the client is left to a wait thread (it must send finished copies first). end_all() releases everyone.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace gpupool::worker {

constexpr size_t kMaxHostCallbacks = 65536;

class HostCallbacks {
 public:
  // Tells the client that the turn of `id` has come; runs on the device's callback thread and must not block for long.
  using Tell = std::function<void(uint64_t id, const void* context)>;
  explicit HostCallbacks(Tell tell) : tell_(std::move(tell)) {}

  struct Turn {
    HostCallbacks* owner;
    uint64_t id;
    const void* context;
  };
  // What cuLaunchHostFunc gets: run() and this. Null: the id is in use, or too many are.
  Turn* add(uint64_t id, const void* context);
  void remove(uint64_t id);  // the launch has failed
  // The same for a node of a graph, which has its turn in each launch, one launch after the other.
  Turn* keep(uint64_t id, const void* context);
  // A launch with it begins; `failed`: it did not.
  void launched(uint64_t id, bool failed = false);
  // No more launches; those under way still have theirs.
  void let_go(uint64_t id);
  // False: no such callback.
  bool done(uint64_t id);
  // The context is about to be destroyed, which would wait for its callbacks: they are waited for no longer.
  void release(const void* context);
  void end_all();
  static void run(void* turn);

 private:
  struct State {
    std::unique_ptr<Turn> turn;
    bool done = false;
    bool kept = false;      // until let_go()
    bool released = false;  // nobody waits for it any more
    uint64_t launches = 0;  // of a graph's, that are still to come here
  };

  Turn* add_state(uint64_t id, const void* context, bool kept);

  const Tell tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, State> callbacks_;
  bool ended_ = false;
};

}  // namespace gpupool::worker
