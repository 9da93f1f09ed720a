#include "tests/support/cutting_proxy.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace gpupool::testing {
namespace {

using transport::Clock;
using transport::Connection;

constexpr std::chrono::milliseconds kProxyEndCheck{20};  // between checks of a blocked thread for its end

}  // namespace

struct CuttingProxy::Line {
  std::unique_ptr<Connection> client, server;
  std::atomic<int64_t> left{0};  // bytes until the cut
  std::atomic<bool> cut{false};
  std::atomic<int> open_ways{2};
  unsigned frozen = 0;  // value of frozen_ when it was opened
  std::thread up, down;
};

CuttingProxy::CuttingProxy(const transport::Endpoint& server, uint64_t mean, uint32_t seed, uint64_t spared,
                           double growth)
    : server_(server), mean_(mean), spared_(spared), growth_(growth), random_(seed) {
  listen(0);
}

void CuttingProxy::listen(uint16_t port) {
  auto listener = transport::listen({"tcp", "127.0.0.1", port}, {});
  if (!listener) throw std::runtime_error(listener.error().message);
  listener_ = std::move(*listener);
  acceptor_ = std::thread([this] { accept(); });
}

CuttingProxy::~CuttingProxy() {
  go_away();
  for (const auto& line : lines_) {
    line->up.join();
    line->down.join();
  }
}

// Thousands of cut connections would take all descriptors and threads. Call with mutex_ held.
void CuttingProxy::drop_ended() {
  for (const auto& line : lines_) {
    if (line->open_ways != 0) continue;
    line->up.join();
    line->down.join();
  }
  std::erase_if(lines_, [](const auto& line) { return !line->up.joinable(); });
}

void CuttingProxy::cut() {
  const std::lock_guard lock(mutex_);
  for (const auto& line : lines_) line->cut = true;
}

void CuttingProxy::go_away() {
  ending_ = true;
  listener_->close();
  if (acceptor_.joinable()) acceptor_.join();
}

void CuttingProxy::come_back() {
  const uint16_t port = listener_->endpoint().port;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& line : lines_) {
      line->up.join();
      line->down.join();
    }
    lines_.clear();
  }
  ending_ = false;
  listen(port);
}

void CuttingProxy::accept() {
  while (!ending_) {
    auto client = listener_->accept(std::nullopt);
    if (!client) return;
    auto upstream = transport::connect(server_, {});
    if (!upstream) continue;  // closes the client's connection
    auto made = std::make_unique<Line>();
    Line& line = *made;
    line.client = std::move(*client);
    line.server = std::move(*upstream);
    line.frozen = frozen_;
    const std::lock_guard lock(mutex_);
    drop_ended();
    const double mean = static_cast<double>(mean_) * std::pow(growth_, cuts_);
    std::exponential_distribution<double> until_cut(1 / mean);
    line.left = static_cast<int64_t>(spared_) + static_cast<int64_t>(until_cut(random_));
    const auto pass = [this, &line](Connection& from, Connection& to) {
      std::vector<std::byte> buffer(64 * 1024);
      while (!ending_ && !line.cut) {
        if (line.frozen != frozen_) {
          std::this_thread::sleep_for(kProxyEndCheck);
          continue;
        }
        const auto received = from.receive_some(buffer);
        if (!received) break;
        if (*received == 0) {
          if (!from.wait(true, false, Clock::now() + kProxyEndCheck)) break;
          continue;
        }
        size_t allowed = *received;
        if (cutting_) {
          const int64_t left = line.left.fetch_sub(static_cast<int64_t>(*received));
          allowed = static_cast<size_t>(std::clamp<int64_t>(left, 0, static_cast<int64_t>(*received)));
          line.cut = line.cut || allowed < *received;
        }
        if (recording_) {
          const std::lock_guard recorded_lock(recorded_mutex_);
          recorded_.append(reinterpret_cast<const char*>(buffer.data()), allowed);
        }
        const iovec part{buffer.data(), allowed};
        if (!transport::send_all(to, {&part, 1}, Clock::now() + std::chrono::seconds(30))) break;
        if (allowed < *received) ++cuts_;
      }
      from.close();
      to.close();
      --line.open_ways;
    };
    line.up = std::thread([pass, &line] { pass(*line.client, *line.server); });
    line.down = std::thread([pass, &line] { pass(*line.server, *line.client); });
    lines_.push_back(std::move(made));
  }
}

}  // namespace gpupool::testing
