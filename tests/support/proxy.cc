#include "tests/support/proxy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "protocol/wire/frame.h"

namespace gpupool::testing {
namespace {

using transport::Clock;
using transport::Connection;

bool pass(Connection& to, std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return transport::send_all(to, {&part, 1}, Clock::now() + std::chrono::seconds(30)).ok();
}

}  // namespace

Proxy::Proxy(const transport::Endpoint& server, uint64_t cut_after, uint64_t cut_after_upwards,
             uint16_t port) {
  auto listener = transport::listen({"tcp", "127.0.0.1", port}, {});
  if (!listener) throw std::runtime_error(listener.error().message);
  listener_ = std::move(*listener);
  thread_ = std::thread(
      [this, server, cut_after, cut_after_upwards] { run(server, cut_after, cut_after_upwards); });
}

Proxy::~Proxy() {
  ending_ = true;
  listener_->close();
  if (thread_.joinable()) thread_.join();
}

void Proxy::run(const transport::Endpoint& server, uint64_t cut_after, uint64_t cut_after_upwards) {
  auto client = listener_->accept(std::nullopt);
  if (!client) return;
  auto upstream = transport::connect(server, {});
  if (!upstream) return;
  // Each direction has a thread, so that a full buffer in one cannot block the other.
  std::thread up([&] {
    std::vector<std::byte> buffer(256 * 1024);
    while (!ending_) {
      const auto received = (*client)->receive_some(buffer);
      if (!received) break;
      if (*received == 0) {
        if (!(*client)->wait(true, false, Clock::now() + std::chrono::milliseconds(50))) break;
        continue;
      }
      from_client_ += *received;
      keep(false, buffer.data(), *received);
      look(buffer.data(), *received);
      if (!pass(**upstream, {buffer.data(), *received}) || from_client_ >= cut_after_upwards) break;
    }
    (*upstream)->close();
  });
  std::vector<std::byte> buffer(256 * 1024);
  while (!ending_) {
    const auto received = (*upstream)->receive_some(
        {buffer.data(), std::min<uint64_t>(buffer.size(), cut_after - from_server_)});
    if (!received) break;
    if (*received == 0) {
      if (!(*upstream)->wait(true, false, Clock::now() + std::chrono::milliseconds(50))) break;
      continue;
    }
    from_server_ += *received;
    keep(true, buffer.data(), *received);
    if (!pass(**client, {buffer.data(), *received})) break;
    if (from_server_ >= cut_after) break;
  }
  (*client)->close();
  (*upstream)->close();
  up.join();
}

// Called before the bytes are passed on, so that what a side sends because of them is kept behind them.
void Proxy::keep(bool from_server, const std::byte* bytes, size_t size) {
  if (!recording_) return;
  const std::lock_guard lock(mutex_);
  recorded_.push_back({from_server, std::string(reinterpret_cast<const char*>(bytes), size)});
}

void Proxy::look(const std::byte* bytes, size_t size) {
  while (size > 0) {
    const size_t skipped = std::min<uint64_t>(skip_, size);
    skip_ -= skipped;
    bytes += skipped;
    size -= skipped;
    const size_t whole = hello_seen_ ? sizeof(wire::CommandHeader) : sizeof(wire::Preamble);
    const size_t taken = std::min(size, whole - unread_.size());
    unread_.append(reinterpret_cast<const char*>(bytes), taken);
    bytes += taken;
    size -= taken;
    if (unread_.size() < whole) return;
    if (hello_seen_) {
      wire::CommandHeader header;
      std::memcpy(&header, unread_.data(), sizeof header);
      skip_ = header.length;
      ++commands_;
      if (header.id == static_cast<uint16_t>(wire::Command::upload_part)) ++uploads_;
      if ((header.flags & wire::kWantsReply) != 0) ++round_trips_;
    } else {
      wire::Preamble preamble;
      std::memcpy(&preamble, unread_.data(), sizeof preamble);
      skip_ = preamble.length;
      hello_seen_ = true;
    }
    unread_.clear();
  }
}

}  // namespace gpupool::testing
