#include "server/poold/node/agent.h"

#include <algorithm>
#include <asio/post.hpp>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/admission/received_limits.h"
#include "common/blocked_signals.h"
#include "common/files/exposure.h"
#include "common/log/log.h"
#include "common/version.h"
#include "protocol/control/connect_failure.h"
#include "protocol/transport/loopback.h"
#include "protocol/transport/transport.h"
#include "server/poold/node/lease_orders.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUsualHeartbeat{2'000}, kShortestHeartbeat{100}, kLongestHeartbeat{60'000};
constexpr milliseconds kFirstPatience{10'000};     // for a scheduler's first message
constexpr milliseconds kConnectPatience{3'000};    // short, since another scheduler may be reachable
constexpr milliseconds kShortestPatience{15'000};  // for later messages; or kMissedHeartbeats, if longer
constexpr int kMissedHeartbeats = 4;
constexpr milliseconds kFirstBackoff{200}, kLongestBackoff{10'000};
constexpr milliseconds kNotableSkew{5'000};
constexpr milliseconds kBetweenOrders{10};
constexpr size_t kLongestAddress = 300, kMostTokenBytes = 4096;
constexpr int kMostOrderBytes = 1 << 20;
constexpr std::chrono::seconds kPatienceForLastReport{1}, kPatienceAtEnd{2};

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::invalid, "cannot read '" + path + "'"};
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// An empty path returns an empty token, for schedulers that trust all nodes.
Result<std::string> read_token(const std::string& path) {
  if (path.empty()) return std::string();
  if (const auto checked = files::check_secret(path); !checked) return checked.error();
  auto token = read_file(path);
  if (!token) return token;
  while (!token->empty() && (token->back() == '\n' || token->back() == '\r' || token->back() == ' '))
    token->pop_back();
  const auto fits = [](char c) { return c > ' ' && c < 127; };
  if (token->empty() || token->size() > kMostTokenBytes || !std::all_of(token->begin(), token->end(), fits)) {
    return Error{ErrorCode::invalid, "'" + path + "' must have a token: one line of printable characters"};
  }
  return token;
}

}  // namespace

// State shared with the streams, which end on gRPC's threads. The io_context must outlive all of them.
struct Agent::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  int open = 0;
  bool closed = false;  // used on poold's thread only
  bool gone = false;    // guarded by `mutex`: the io_context may be gone
};

Agent::Agent(asio::io_context& context, PoolOptions options, Leases& leases, Host host)
    : context_(context),
      options_(std::move(options)),
      leases_(leases),
      host_(std::move(host)),
      random_(std::random_device{}()),
      retry_timer_(context),
      report_timer_(context),
      patience_timer_(context),
      read_timer_(context),
      shared_(std::make_shared<Shared>()),
      heartbeat_(kUsualHeartbeat) {}

Agent::~Agent() {
  stop();
  std::unique_lock lock(shared_->mutex);
  shared_->gone = true;
  const auto all_ended = [this] { return shared_->open == 0; };
  if (leaving_ && !shared_->changed.wait_for(lock, kPatienceForLastReport, all_ended)) leaving_->cancel();
  shared_->changed.wait_for(lock, kPatienceAtEnd, all_ended);
}

Result<void> Agent::start() {
  if (options_.schedulers.empty()) return {};
  if (const auto token = read_token(options_.token_file); !token) return token.error();
  if (!options_.ca.empty()) {
    auto ca = read_file(options_.ca);
    if (!ca) return ca.error();
    ca_ = std::move(*ca);
  }
  leases_.on_end([this] { report(); });
  connect();
  return {};
}

void Agent::stop() {
  if (std::exchange(stopped_, true)) return;
  shared_->closed = true;
  retry_timer_.cancel();
  report_timer_.cancel();
  patience_timer_.cancel();
  read_timer_.cancel();
  if (!stream_) return;
  if (registered_) {
    pool::NodeReport last = make_report();
    last.set_leaving(true);
    leaving_ = std::exchange(stream_, nullptr);
    return leaving_->leave(std::move(last));
  }
  stream_->cancel();
  std::exchange(stream_, nullptr)->release();
}

std::shared_ptr<grpc::Channel> Agent::channel(const std::string& address) const {
  grpc::ChannelArguments arguments;
  // No sharing or retrying of connections by gRPC: this object decides when to connect.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kConnectPatience.count()));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kConnectPatience.count()));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  limit_received(arguments, kMostOrderBytes);
  const auto credentials =
      options_.ca.empty() && (options_.insecure || transport::connects_to_loopback(address))
          ? grpc::InsecureChannelCredentials()
          : grpc::SslCredentials({.pem_root_certs = ca_, .pem_private_key = {}, .pem_cert_chain = {}});
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

// Returns a function that posts `event` to poold's thread, where it does nothing if the Agent has stopped or
// another attempt has begun.
template <class Event>
auto Agent::on_thread(uint64_t attempt, Event event) {
  return [this, &context = context_, shared = shared_, attempt, event](auto... what) {
    asio::post(context, [this, shared, attempt, event, ... what = std::move(what)] {
      if (!shared->closed && attempt == attempt_) event(what...);
    });
  };
}

// Reads the token and the authorities, which may have been renewed, on a thread of its own: their file system
// may not answer.
void Agent::connect() {
  if (stopped_) return;
  const uint64_t attempt = ++attempt_;
  const auto tell =
      on_thread(attempt, [this, attempt](const Result<std::string>& token, const Result<std::string>& ca) {
        open_stream(attempt, token, ca);
      });
  const BlockedSignals blocked;
  try {
    std::thread([tell, shared = shared_, token_file = options_.token_file, ca_file = options_.ca] {
      const Result<std::string> token = read_token(token_file);
      const Result<std::string> ca = ca_file.empty() ? Result<std::string>("") : read_file(ca_file);
      const std::lock_guard lock(shared->mutex);
      if (!shared->gone) tell(token, ca);
    }).detach();
  } catch (const std::system_error& failure) {
    schedule_retry(std::string("cannot start a thread: ") + failure.what());
  }
}

void Agent::open_stream(uint64_t attempt, const Result<std::string>& token, const Result<std::string>& ca) {
  if (stopped_) return;
  if (!token) return schedule_retry(token.error().message);
  if (ca && !ca->empty()) ca_ = *ca;  // otherwise the last content stays in use
  address_ = leader_.empty() ? options_.schedulers[next_++ % options_.schedulers.size()]
                             : std::exchange(leader_, {});
  writing_ = has_inventory_ = registered_ = false;
  {
    const std::lock_guard lock(shared_->mutex);
    ++shared_->open;
  }
  const BlockedSignals blocked;  // for gRPC's threads
  NodeStream::Events events;
  events.orders = on_thread(attempt, [this](const pool::NodeOrders& orders) {
    handle_orders(orders);
    read_next_orders();
  });
  events.written = on_thread(attempt, [this] {
    writing_ = false;
    if (std::exchange(wants_report_, false)) report();
  });
  events.broken = on_thread(attempt, [this] {
    if (stream_) std::exchange(stream_, nullptr)->release();
  });
  events.ended =
      [tell = on_thread(attempt,
                        [this](const auto& stream, const grpc::Status& status, const std::string& leader) {
                          finished_ = stream;
                          handle_stream_end(status, leader);
                        }),
       shared = shared_](std::shared_ptr<NodeStream> stream, const grpc::Status& status,
                         const std::string& leader) {
        tell(std::move(stream), status, leader);
        const std::lock_guard lock(shared->mutex);
        --shared->open;
        shared->changed.notify_all();
      };
  stream_ = NodeStream::open(channel(address_), *token, std::move(events));
  set_patience(kFirstPatience);
  report();
}

void Agent::set_patience(Milliseconds time) {
  patience_timer_.expires_after(time);
  patience_timer_.async_wait([this](const asio::error_code& status) {
    if (!status && stream_) stream_->cancel();
  });
}

void Agent::report() {
  if (!stream_) return;
  if (writing_) {
    wants_report_ = true;
    return;
  }
  pool::NodeReport report = make_report();
  if (!std::exchange(has_inventory_, true)) {
    pool::Inventory& inventory = *report.mutable_inventory() = host_.inventory();
    inventory.set_node(options_.name);
    inventory.set_boot(leases_.boot());
    inventory.set_cpu_milli(options_.cpu_milli);
    inventory.set_host_memory_bytes(options_.host_memory_bytes);
    inventory.set_rack(options_.rack);
    inventory.set_zone(options_.zone);
    inventory.set_version(kVersion);
  }
  writing_ = true;
  stream_->write(std::move(report));
  set_report_timer();
}

pool::NodeReport Agent::make_report() const {
  pool::NodeReport report;
  leases_.report(report);
  host_.describe_state(report);
  report.set_now_ms(
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  return report;
}

void Agent::set_report_timer() {
  report_timer_.expires_after(heartbeat_);
  report_timer_.async_wait([this](const asio::error_code& status) {
    if (!status) report();
  });
}

void Agent::handle_orders(const pool::NodeOrders& orders) {
  if (!std::exchange(registered_, true)) {
    log::info(
        "scheduler_attends",
        {{"scheduler", address_}, {"node", options_.name}, {"boot", lease::hexadecimal(leases_.boot())}});
    since_ = Clock::now();
    disconnect_reason_.clear();
    logged_disconnect_ = false;
    failures_ = 0;
    followed_ = false;
  }
  const auto before = heartbeat_;
  heartbeat_ = std::clamp(milliseconds(orders.heartbeat_ms()), kShortestHeartbeat, kLongestHeartbeat);
  if (heartbeat_ != before) set_report_timer();
  set_patience(std::max(kShortestPatience, kMissedHeartbeats * heartbeat_));
  note_clock(orders.now_ms());
  const std::string fenced = bounded_reason(orders.fenced_because());
  if (fenced != fenced_because_) {
    if (fenced.empty())
      log::info("node_not_fenced", {{"scheduler", address_}});
    else
      log::warning("node_fenced", {{"scheduler", address_}, {"reason", fenced}});
    fenced_because_ = fenced;
  }
  const int malformed = execute_lease_orders(orders, leases_);
  if (malformed == 0) return;
  log::warning("orders_ignored", {{"scheduler", address_},
                                  {"count", malformed},
                                  {"reason", "malformed lease ID in an order for a lease"}});
}

// A scheduler that sends orders without end fills its own window, and other work of this thread goes on.
void Agent::read_next_orders() {
  read_timer_.expires_after(kBetweenOrders);
  read_timer_.async_wait([this](const asio::error_code& status) {
    if (!status && stream_) stream_->read_next();
  });
}

void Agent::note_clock(int64_t scheduler_ms) {
  const auto now =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  if (scheduler_ms <= 0 || scheduler_ms > INT64_MAX / 2) return;  // the scheduler did not send its time
  clock_skew_ms_ = scheduler_ms - now.count();
  const bool notable = std::abs(clock_skew_ms_) > kNotableSkew.count();
  if (notable && !logged_skew_) {
    log::warning(
        "clocks_differ",
        {{"scheduler", address_},
         {"skew_ms", clock_skew_ms_},
         {"reason", "lease validity depends on the scheduler's clock; synchronize both hosts with NTP"}});
  }
  logged_skew_ = notable;
}

void Agent::handle_stream_end(const grpc::Status& status, const std::string& leader) {
  patience_timer_.cancel();
  report_timer_.cancel();
  const bool elsewhere = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                         leader.size() <= kLongestAddress && leader != address_ &&
                         transport::Endpoint::parse("tcp://" + leader);
  if (elsewhere) {
    leader_ = leader;
    if (std::exchange(registered_, false)) since_ = Clock::now();
    if (!std::exchange(followed_, true)) return connect();  // at once, but only one redirection in a row
  }
  followed_ = false;
  const std::string unconnected = pool::connect_failure(status.error_message());
  const std::string why = status.ok() ? "the scheduler closed the stream"
                          : status.error_code() == grpc::StatusCode::CANCELLED ? "timed out"
                          : !unconnected.empty()
                              ? "cannot connect to a pool-scheduler (" + bounded_reason(unconnected) + ")"
                              : bounded_reason(status.error_message());
  schedule_retry(address_ + ": " + (why.empty() ? "no reason given" : why));
}

void Agent::schedule_retry(const std::string& why) {
  if (stopped_) return;
  if (std::exchange(registered_, false)) since_ = Clock::now();
  disconnect_reason_ = why;
  if (!std::exchange(logged_disconnect_, true)) {
    log::warning("scheduler_away",
                 {{"reason", why}, {"note", "sessions and leases are not affected; retrying"}});
  }
  // Tries each scheduler once soon, then with exponential backoff; with jitter, so that nodes do not
  // reconnect all at once.
  const unsigned doublings = std::min(failures_ / static_cast<unsigned>(options_.schedulers.size()), 10u);
  const milliseconds longest = std::min(kFirstBackoff * (1u << doublings), kLongestBackoff);
  ++failures_;
  std::uniform_int_distribution<int64_t> jitter(longest.count() / 2, longest.count());
  retry_timer_.expires_after(milliseconds(jitter(random_)));
  retry_timer_.async_wait([this](const asio::error_code& status) {
    if (!status) connect();
  });
}

void Agent::describe(admin::PoolMembership& out) const {
  out.set_node(options_.name);
  if (registered_) out.set_scheduler(address_);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  out.set_since_ms(std::chrono::duration_cast<milliseconds>(now - (Clock::now() - since_)).count());
  out.set_away_because(registered_ || options_.schedulers.empty() ? "" : disconnect_reason_);
  out.set_fenced_because(fenced_because_);
  out.set_clock_skew_ms(clock_skew_ms_);
  out.set_leases(leases_.count());
}

}  // namespace gpupool::server
