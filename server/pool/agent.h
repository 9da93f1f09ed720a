// poold as a node of a pool: attends one of the schedulers, tells it what this host has and which leases are in use, and ends
// leases that it orders to end. poold's one thread; gRPC's threads post to it.
//
// Schedulers come and go: the next one is tried, ever more slowly, while sessions and leases go on undisturbed. What a scheduler
// says is bounded, and can end leases and nothing else.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <string>

#include "protocol/control/admin.pb.h"
#include "server/pool/leases.h"
#include "server/pool/node_stream.h"
#include "server/pool/pool_options.h"

namespace gpupool::server {

class Agent {
 public:
  struct Host {
    std::function<pool::Inventory()> inventory;            // without node, boot and what the options say
    std::function<void(pool::NodeReport&)> describe_state;  // ready and the GPUs' use
  };

  Agent(asio::io_context& context, PoolOptions options, Leases& leases, Host host);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Nothing where there are no schedulers. ErrorCode::invalid: a file cannot be read.
  Result<void> start();
  // Tells the scheduler that poold stops; the destructor waits until it has heard it.
  void stop();
  void describe(admin::PoolMembership& out) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  struct Shared;  // with the streams' events

  void connect();
  std::shared_ptr<grpc::Channel> channel(const std::string& address) const;
  template <class Event>
  auto on_thread(uint64_t attempt, Event event);
  void attended(const pool::NodeOrders& orders);
  void ended(const grpc::Status& status, const std::string& leader);
  void away(const std::string& why);
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
  asio::steady_timer patience_timer_;  // for a word of the scheduler
  const std::shared_ptr<Shared> shared_;

  std::shared_ptr<NodeStream> stream_;
  std::shared_ptr<NodeStream> leaving_;   // the stream that stop() has sent the last report on
  std::shared_ptr<NodeStream> finished_;  // the one before: gRPC's thread may be on its way out of it
  uint64_t attempt_ = 0;
  size_t next_ = 0;         // of options_.schedulers
  std::string leader_;      // where to go next instead
  bool followed_ = false;   // this attempt goes where the one before was sent
  std::string address_;     // of stream_
  bool writing_ = false;
  bool wants_report_ = false;
  bool has_inventory_ = false;  // in this stream
  bool attended_ = false;       // the scheduler has answered in this stream
  bool told_away_ = false;
  bool stopped_ = false;
  unsigned failures_ = 0;       // in a row
  Milliseconds heartbeat_;
  Clock::time_point since_ = Clock::now();  // of being attended, or not
  std::string away_because_;
  std::string fenced_because_;
  int64_t clock_skew_ms_ = 0;   // the scheduler's clock less this one
  bool told_skew_ = false;
};

}  // namespace gpupool::server
