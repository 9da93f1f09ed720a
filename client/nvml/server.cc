#include "client/nvml/server.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>

#include "client/process/driver_version.h"
#include "client/process/identity.h"
#include "client/process/log.h"
#include "client/session/poold_connection.h"
#include "protocol/driver/driver_version.h"
#include "protocol/wire/frame.h"

namespace gpupool::nvml {
namespace {

using namespace std::chrono_literals;
using transport::Clock;

constexpr auto kFreshFor = 20ms;         // one look answers all queries that a tool makes in a row
constexpr auto kShortestWindow = 167ms;  // as in NVML, whose samples span 1/6 s to 1 s
constexpr auto kLongestWindow = 2s;
constexpr auto kBetweenSamples = 50ms;
constexpr auto kFirstPause = 1s;
constexpr auto kLongestPause = 30s;

std::chrono::nanoseconds taken(const monitor::State& state) {
  return std::chrono::nanoseconds(state.taken_ns);
}

bool same_gpus(const std::vector<hello::Device>& a, const std::vector<hello::Device>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.uuid == y.uuid; });
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(const client::Settings& settings, Find find) {
  std::unique_ptr<Server> server(new Server(settings, std::move(find)));
  if (auto connected = server->connect(); !connected) return connected.error();
  return server;
}

Result<void> Server::connect() {
  const auto found = find_();
  if (!found) return found.error();
  name_ = found->endpoint.text();
  hello::Hello hello = client::introduction();
  hello.monitor = true;
  hello::HelloReply reply;
  auto connection = client::connect_to_poold(settings_, *found, std::move(hello), kTimeout, &reply);
  if (!connection) return connection.error();
  if (!devices_.empty() && !same_gpus(devices_, reply.devices)) {
    return Error{ErrorCode::refused, "its GPUs have changed"};
  }
  devices_ = std::move(reply.devices);
  driver_version_ = client::driver_version_setting().value_or(
      std::min(cuda::kNewestSupportedVersion, reply.driver_version));
  connection_ = std::move(*connection);
  return {};
}

Result<monitor::State> Server::query() {
  if (!connection_) return Error{ErrorCode::closed, "not connected"};
  const auto deadline = Clock::now() + kTimeout;
  wire::Preamble preamble;
  const iovec question[] = {{&preamble, sizeof preamble}};
  if (auto sent = transport::send_all(*connection_, question, deadline); !sent) return sent.error();
  if (auto got =
          transport::receive_exact(*connection_, std::as_writable_bytes(std::span(&preamble, 1)), deadline);
      !got)
    return got.error();
  if (preamble.magic != wire::kMagic || preamble.length > wire::kMaxBodyBytes)
    return Error{ErrorCode::malformed, "protocol error: malformed answer"};
  std::string body(preamble.length, '\0');
  if (auto got = transport::receive_exact(*connection_, std::as_writable_bytes(std::span(body)), deadline);
      !got)
    return got.error();
  auto state = monitor::decode_state(body);
  if (state && state->gpus.size() != devices_.size())
    return Error{ErrorCode::malformed, "protocol error: the number of GPUs has changed"};
  return state;
}

// Asks again on a new connection: poold closes connections that were idle for long, and some in favour of
// others, so that is not a failure.
Result<monitor::State> Server::query_reconnecting() {
  auto state = query();
  if (state) return state;
  connection_.reset();
  if (auto connected = connect(); !connected) return connected.error();
  return query();
}

const monitor::State* Server::look() {
  const auto now = Clock::now();
  if (!lost_ && state_ && now - looked_ < kFreshFor) return &*state_;
  if (lost_ && now < try_again_) return nullptr;
  auto state = query_reconnecting();
  if (!state) {
    connection_.reset();
    if (!lost_)
      client::log_error(
          "lost the connection to server %s: %s; NVML calls on its GPUs fail until it is restored",
          name_.c_str(), state.error().message.c_str());
    pause_ = lost_ ? std::min<std::chrono::milliseconds>(2 * pause_, kLongestPause) : kFirstPause;
    lost_ = true;
    try_again_ = Clock::now() + pause_;
    return nullptr;
  }
  if (std::exchange(lost_, false)) {
    client::log_debug("reconnected to server %s", name_.c_str());
    history_.clear();
  }
  state_ = std::move(*state);
  looked_ = Clock::now();
  add_sample();
  return &*state_;
}

void Server::add_sample() {
  if (!history_.empty() && taken(*state_) - taken(history_.back()) < kBetweenSamples) return;
  history_.push_back(*state_);
  while (history_.size() > 1 && taken(*state_) - taken(history_.front()) > 1s) history_.pop_front();
}

Server::Window Server::window() {
  const monitor::State* const now = look();
  if (!now) return {};
  for (auto before = history_.rbegin(); before != history_.rend(); ++before) {
    const auto length = taken(*now) - taken(*before);
    if (length >= kShortestWindow && length <= kLongestWindow) return {&*before, now, {}};
  }
  const auto begun = history_.empty() ? taken(*now) : taken(history_.back());
  const auto missing = std::max<std::chrono::nanoseconds>(kShortestWindow - (taken(*now) - begun), 1ms);
  return {nullptr, now,
          std::chrono::ceil<std::chrono::milliseconds>(
              std::min<std::chrono::nanoseconds>(missing, kShortestWindow))};
}

void Server::abandon() {
  if (!connection_) return;
  if (const int copy = connection_->release_descriptor(); copy >= 0) ::close(copy);
}

}  // namespace gpupool::nvml
