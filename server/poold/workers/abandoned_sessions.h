// Ends sessions that their clients have abandoned: the client's side has closed the connection without a
// farewell, as the kernel does for a program that was killed, and the client has not returned. A worker keeps
// its abandoned session for some seconds, because a restarting proxy closes connections as well
// (docs/adr/0036-sessions-resume.md). This class ends it earlier if the client's process is known to have
// ended, or if another session needs its slot or its memory.
//
// WorkerPool owns it and calls update() after every change. poold's thread.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class AbandonedSessions {
 public:
  // A client that still lives notices the end of its connection at once, and has this much time to return.
  static constexpr std::chrono::milliseconds kReturnTime{300};
  using End = std::function<void(uint64_t session, const std::string& reason)>;

  // `end` ends a session soon, but not during the call.
  AbandonedSessions(asio::io_context& context, Workers& workers, End end)
      : workers_(workers), end_(std::move(end)), timer_(context) {}
  AbandonedSessions(const AbandonedSessions&) = delete;
  AbandonedSessions& operator=(const AbandonedSessions&) = delete;

  // The number of sessions that are abandoned or about to end, of all tenants or of one.
  size_t count() const;
  size_t count(const std::string& tenant) const;
  // Lets at least this many abandoned sessions end, the oldest first, for clients that wait for their slots.
  void free_slots(size_t sessions);
  void free_slots(size_t sessions, const std::string& tenant);
  // A worker's question. Returns false if the worker was ended because it is invalid.
  bool reclaim(Worker& asking, const packet::Reclaim& wanted);
  // Call after a session was abandoned, was resumed or has ended.
  void update();
  void session_ended(const Worker& worker);
  void stop() { timer_.cancel(); }
  // For this process's next program (server/poold/upgrade).
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(uint64_t session, const upgrade::Session& from);

 private:
  using Clock = std::chrono::steady_clock;
  struct Question {
    packet::Reclaim wanted{};
    std::string tenant;
    Clock::time_point started{};  // of the asking session
    uint64_t victim = 0;          // session that ends for it; 0: none yet
  };
  using Accepts = std::function<bool(const Worker&)>;

  // True for sessions that are about to end for any reason.
  static bool is_ending(const Worker& worker) {
    return worker.breaks.client_leaves || !worker.ending.empty();
  }
  static bool is_abandoned(const Worker& worker) { return worker.breaks.abandoned || is_ending(worker); }
  size_t count_if(const Accepts& accepts) const;
  void free_slots(size_t sessions, const Accepts& accepts);
  // The one that was abandoned first; null: none.
  Worker* oldest(const Accepts& accepts) const;
  bool choose(uint64_t asking, Question& question);
  bool may_end_others(uint64_t asking);
  void answer(uint64_t asking, const Question& question, uint64_t sessions);
  void end_due();

  Workers& workers_;
  const End end_;
  asio::steady_timer timer_;
  std::map<uint64_t, Question> questions_;  // by the asking session
};

}  // namespace gpupool::server
