// poold as a node of a pool: keeps an Attend stream to one of the schedulers, reports this host's GPUs and
// the leases in use, and ends leases that the scheduler orders to end. The daemon owns it. poold's thread;
// gRPC's threads, and those that read files, post to it.
//
// If a scheduler fails, tries the next one with exponential backoff; sessions and leases continue meanwhile.
// A scheduler's messages are limited in size and can do nothing but end leases and move them.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <string>

#include "protocol/control/admin.pb.h"
#include "server/poold/node/leases.h"
#include "server/poold/node/node_stream.h"
#include "server/poold/node/pool_options.h"

namespace gpupool::server {

class Agent {
 public:
  struct Host {
    std::function<pool::Inventory()> inventory;  // without node, boot and the values of PoolOptions
    std::function<void(pool::NodeReport&)> describe_state;  // fills in readiness and the GPUs' use
  };

  Agent(asio::io_context& context, PoolOptions options, Leases& leases, Host host);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Connects to a scheduler. Does nothing if none is configured. ErrorCode::invalid: a file cannot be read.
  Result<void> start();
  // Sends the scheduler a last report, which says that poold is leaving. The destructor waits for it.
  void stop();
  void describe(admin::PoolMembership& out) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  struct Shared;  // used by the streams' events, too

  void connect();
  void open_stream(uint64_t attempt, const Result<std::string>& token, const Result<std::string>& ca);
  std::shared_ptr<grpc::Channel> channel(const std::string& address) const;
  template <class Event>
  auto on_thread(uint64_t attempt, Event event);
  void handle_orders(const pool::NodeOrders& orders);
  void read_next_orders();
  void handle_stream_end(const grpc::Status& status, const std::string& leader);
  void schedule_retry(const std::string& why);
  void report();
  pool::NodeReport make_report() const;
  void set_report_timer();
  void set_patience(Milliseconds time);
  void note_clock(int64_t scheduler_ms);

  asio::io_context& context_;
  const PoolOptions options_;
  Leases& leases_;
  const Host host_;
  std::string ca_;
  std::minstd_rand random_;
  asio::steady_timer retry_timer_;
  asio::steady_timer report_timer_;
  asio::steady_timer patience_timer_;  // limits the wait for the scheduler's next message
  asio::steady_timer read_timer_;      // the pause before the scheduler's next message is read
  const std::shared_ptr<Shared> shared_;

  std::shared_ptr<NodeStream> stream_;
  std::shared_ptr<NodeStream> leaving_;   // stop() has sent the last report on it
  std::shared_ptr<NodeStream> finished_;  // previous stream: gRPC's thread may still be returning from it
  uint64_t attempt_ = 0;
  size_t next_ = 0;        // index of the next one of options_.schedulers
  std::string leader_;     // where to connect next instead, as the previous scheduler said
  bool followed_ = false;  // this attempt follows the previous scheduler's redirection
  std::string address_;    // of stream_'s scheduler
  bool writing_ = false;
  bool wants_report_ = false;
  bool has_inventory_ = false;  // sent on this stream
  bool registered_ = false;     // the scheduler has answered on this stream
  bool logged_disconnect_ = false;
  bool stopped_ = false;
  unsigned failures_ = 0;  // in a row
  Milliseconds heartbeat_;
  Clock::time_point since_ = Clock::now();  // when registered_ last changed
  std::string disconnect_reason_;
  std::string fenced_because_;
  int64_t clock_skew_ms_ = 0;  // the scheduler's clock minus this host's
  bool logged_skew_ = false;
};

}  // namespace gpupool::server
