// Nodes of graphs that need the client: host functions, and copies from and to its memory. The device's callback thread waits here until the
// client has done what a node asks for. Host functions in streams need no thread: they close a gate (stream_gates.h).
//
// keep(), launched() and their like belong to the executor's thread, done() is any thread's; run() is the device's callback, in which no
// driver call is allowed, so that telling the client is left to a wait thread (it must send finished copies first). end_all() releases everyone.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace gpupool::worker {

struct ComputeLane;

constexpr size_t kMaxHostCallbacks = 65536;

class HostCallbacks {
 public:
  // Tells the client that the turn of `id` has come; runs on the device's callback thread and must not block for long.
  using Tell = std::function<void(uint64_t id, const void* context)>;
  // A graph's node begins to wait for the client, or has waited; likewise.
  using Waits = std::function<void(ComputeLane& lane, bool begins, bool only)>;
  HostCallbacks(Tell tell, Waits waits) : tell_(std::move(tell)), waits_(std::move(waits)) {}

  struct Turn {
    HostCallbacks* owner;
    uint64_t id;
    const void* context;
  };
  // What a node of a graph gets: run() and this. It has its turn in each launch, one launch after the other. Null: the id is in use, or too
  // many are.
  Turn* keep(uint64_t id, const void* context);
  void only(uint64_t id);  // nothing else of the graph can run beside it
  // A launch with it begins, of a stream that is measured (null: is not).
  void launched(uint64_t id, std::shared_ptr<ComputeLane> lane);
  void not_launched(uint64_t id);
  // No more launches; those under way still have theirs.
  void let_go(uint64_t id);
  // Is the client to answer one that has been launched?
  bool pending();
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
    bool only = false;
    std::deque<std::shared_ptr<ComputeLane>> launches;  // of a graph's, that are still to come here
  };

  const Tell tell_;
  const Waits waits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, State> callbacks_;
  bool ended_ = false;
};

}  // namespace gpupool::worker
