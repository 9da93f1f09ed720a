// The scheduler's one thread: it owns the core, stores what the core decides, and tells those whom it concerns, in this order. While a
// transaction is being stored what comes is gathered for the next one, so that many grants cost one.
//
// Owned by main; run() is the thread. post() and ask() are for all others. Streams (streams.h) belong to it, from the moment that
// they say something until they are done.
#pragma once
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "protocol/lease/key.h"
#include "scheduler/core/core.h"
#include "scheduler/service/callers.h"
#include "scheduler/service/refusals.h"
#include "scheduler/service/seals.h"
#include "scheduler/store/store.h"
#include "server/log/audit_file.h"

namespace gpupool::scheduler {

class HolderStream;
class NodeStream;

class Engine {
 public:
  // `return_time`: how long a new leader grants nothing, so that those who waited with the one before it come back first.
  Engine(asio::io_context& context, std::unique_ptr<Store> store, lease::SigningKey key, Callers callers, std::string audit_file,
         std::chrono::milliseconds return_time);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Result<void> open_audit() { return audit_.open(); }
  // From now on it tries to become the leader.
  void start(const std::string& address);
  // Streams are ended; `done` when nothing is being stored any more and somebody else may lead.
  void stop(std::function<void()> done);
  // Of a file that was read again. What callers have begun with what is not in it any more ends.
  void configure(Callers callers);

  template <class Work>
  void post(Work work) {
    asio::post(context_, std::move(work));
  }

  // The engine's thread alone, all of them.
  asio::io_context& context() { return context_; }
  const Callers& callers() const { return callers_; }
  const Seals& seals() const { return seals_; }
  const lease::SigningKey& key() const { return key_; }
  const Store& store() const { return *store_; }
  // By the store's word, too: one that was asleep, or cut off from the store, knows nothing of what its successor does.
  bool leads() const { return core_ && store_->leads(); }
  bool stopping() const { return stopping_; }
  uint64_t term() const { return term_; }
  uint64_t commits() const { return commits_; }
  uint64_t store_failures() const { return store_failures_; }
  Core& core() { return *core_; }   // while it leads
  Time now() const;                 // the core's clock
  int64_t wall_offset() const;      // time of day less now()
  // The core has been told something: soon what follows is stored and said. `told`: after that; false: it was not stored.
  void flush(std::function<void(bool)> told = {});
  void audit(const char* event, std::initializer_list<log::Field> fields);
  server::AuditFile::Counts audit_counts() const { return audit_.counts(); }
  Refusals& refusals() { return refusals_; }

  Stream add(HolderStream& stream);
  Stream add(NodeStream& stream);
  void forget(Stream stream);

 private:
  void campaign();
  void lead(Result<uint64_t> term, Result<std::vector<Entry>> entries);
  void step_down(const std::string& why);
  void end_streams(const std::string& why);
  void end_revoked();
  void work();
  void commit(Effects effects);
  void publish(Effects effects);
  void publish(const ToHolder& one, int64_t offset);
  void publish(ToNode one, int64_t offset);
  void tick();
  void end_silent();
  void finish_stopping();

  asio::io_context& context_;
  asio::thread_pool storing_{1};  // the store's thread
  asio::steady_timer ticks_;
  std::unique_ptr<Store> store_;
  const lease::SigningKey key_;
  const Seals seals_;
  Callers callers_;
  server::AuditFile audit_;
  Refusals refusals_;
  const std::chrono::milliseconds return_time_;
  std::string address_;
  const std::chrono::steady_clock::time_point steady_start_;
  const Time wall_start_;

  std::unique_ptr<Core> core_;  // null: not the leader
  uint64_t term_ = 0;
  uint64_t commits_ = 0, store_failures_ = 0;
  bool storing_now_ = false;    // the store's thread is at something
  bool work_posted_ = false;
  bool stopping_ = false;
  bool told_failure_ = false;   // since it last could campaign
  Time may_grant_ = 0;          // from then on; the core's clock
  std::function<void()> stopped_;
  std::vector<std::function<void(bool)>> told_, being_told_;
  Stream streams_ = 0;
  std::deque<std::pair<Time, Stream>> fresh_;  // those that came last, and when
  std::unordered_map<Stream, HolderStream*> holders_;
  std::unordered_map<Stream, NodeStream*> nodes_;
};

}  // namespace gpupool::scheduler
