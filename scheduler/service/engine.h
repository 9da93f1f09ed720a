// Runs the core on the scheduler's main thread: campaigns for leadership, passes events to the core, stores
// its decisions, and then publishes them to clients and nodes. While one transaction is being stored, further
// events are collected for the next one (group commit).
//
// Owned by Daemon, whose io_context runs on the engine's thread. Other threads may only call post(). Streams
// (streams.h) register with add() and call forget() when they end; the engine does not own them. If the store
// fails, the engine drops the core, ends all streams and campaigns again.
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

#include "common/log/audit_file.h"
#include "protocol/lease/key.h"
#include "scheduler/core/core.h"
#include "scheduler/service/auth_failure_log.h"
#include "scheduler/service/callers.h"
#include "scheduler/service/lease_credentials.h"
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

class LeaseStream;
class NodeStream;

class Engine {
 public:
  // `return_time`: how long a new leader grants nothing, so that clients that waited at the previous leader
  // can return with their tickets before others are served.
  Engine(asio::io_context& context, std::unique_ptr<Store> store, lease::SigningKey key, Callers callers,
         std::string audit_file, std::chrono::milliseconds return_time);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Result<void> open_audit() { return audit_.open(); }
  // Starts to campaign for leadership. `address` is published in the store for clients to find the leader.
  void start(const std::string& address);
  // Ends all streams; calls `done` when the last transaction has been stored and the leadership has been
  // given up.
  void stop(std::function<void()> done);
  // Applies a configuration that was read again. Ends leases, requests and streams of callers whose tenant or
  // token was removed.
  void configure(Callers callers);

  template <class Work>
  void post(Work work) {
    asio::post(context_, std::move(work));
  }

  // The following members may be called on the engine's thread only.
  asio::io_context& context() { return context_; }
  const Callers& callers() const { return callers_; }
  const LeaseCredentials& credentials() const { return credentials_; }
  const lease::SigningKey& key() const { return key_; }
  const Store& store() const { return *store_; }
  // Asks the store as well: a scheduler that was suspended or cut off may have been replaced without
  // noticing.
  bool leads() const { return core_ && store_->leads(); }
  bool stopping() const { return stopping_; }
  uint64_t term() const { return term_; }
  uint64_t commits() const { return commits_; }
  uint64_t store_failures() const { return store_failures_; }
  Core& core() { return *core_; }  // only while it leads
  Time now() const;                // the core's monotonic clock
  int64_t wall_offset() const;     // wall clock minus now(), milliseconds
  // Call after events were passed to the core: schedules storing and publishing of its effects. `on_stored`
  // is called after that, or with false if they could not be stored.
  void flush(std::function<void(bool)> on_stored = {});
  // Reads all entries with the prefix on the storing thread, after what was flushed before and between other
  // transactions. `read` is called on the engine's thread.
  void read(const std::string& prefix, std::function<void(Result<std::vector<Entry>>)> read);
  void audit(const char* event, std::initializer_list<log::Field> fields);
  // `observer` is called with each later note of the core once it has been stored, and with the time in
  // milliseconds since 1970. There is one observer, which must outlive the engine's calls.
  void observe(std::function<void(const Note& note, int64_t at_ms)> observer) {
    observer_ = std::move(observer);
  }
  AuditFile::Counts audit_counts() const { return audit_.counts(); }
  AuthFailureLog& auth_failures() { return auth_failures_; }

  Stream add(LeaseStream& stream);
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
  void publish(const ClientMessage& one, int64_t offset);
  Result<pool::Server> signed_server(const GrantedServer& from, int64_t offset) const;
  Result<void> fill_granted(const Grant& grant, int64_t offset, pool::Granted& granted) const;
  void publish(NodeMessage one, int64_t offset);
  void tick();
  void follow_wall_clock();  // informs the core if the wall clock was set
  void end_idle_streams();
  void finish_stopping();

  asio::io_context& context_;
  asio::thread_pool storing_{1};  // the thread that calls the store
  asio::steady_timer ticks_;
  std::unique_ptr<Store> store_;
  const lease::SigningKey key_;
  const LeaseCredentials credentials_;
  Callers callers_;
  AuditFile audit_;
  AuthFailureLog auth_failures_;
  const std::chrono::milliseconds return_time_;
  std::string address_;
  const std::chrono::steady_clock::time_point steady_start_;
  const Time wall_start_;
  Time calendar_offset_ = 0;  // wall_offset() as the core knows it

  std::unique_ptr<Core> core_;  // null while not the leader
  uint64_t term_ = 0;
  uint64_t commits_ = 0, store_failures_ = 0;
  bool storing_now_ = false;  // the store's thread is busy
  bool work_posted_ = false;
  bool stopping_ = false;
  bool logged_failure_ = false;  // the present outage of the store has been logged
  Time may_grant_ = 0;           // nothing is granted before this time
  std::function<void()> stopped_;
  std::function<void(const Note&, int64_t)> observer_;
  std::vector<std::function<void(bool)>> callbacks_, running_callbacks_;
  Stream streams_ = 0;
  std::deque<std::pair<Time, Stream>>
      awaiting_first_message_;  // streams opened within kFirstMessageTimeout, and when
  std::unordered_map<Stream, LeaseStream*> lease_streams_;
  std::unordered_map<Stream, NodeStream*> nodes_;
};

}  // namespace gpupool::scheduler
