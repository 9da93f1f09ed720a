// A Receiver whose server is the test, and a record of what it reports.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/session/receiver.h"
#include "tests/client/memory_connection.h"

namespace gpupool::client::test {

constexpr std::chrono::milliseconds kNever{60'000};

// A receiver and a record of its callbacks. Never destroyed, as in a program, because its background thread
// may still use it.
struct Line {
  MemoryConnection connection;
  mutable std::mutex mutex;
  std::vector<std::array<uint64_t, 3>> callbacks;  // number, command, result
  std::vector<uint64_t> retired;
  std::vector<Error> failures;
  std::atomic<int> pings{0};
  std::function<void()> answer = [] {};  // called for each ping
  Receiver receiver;

  static Line& make(std::chrono::milliseconds dead_peer_timeout = kNever) {
    return *(new Line(dead_peer_timeout));
  }
  void message(wire::MessageKind kind, uint64_t sequence, const std::string& body = "",
               CUresult result = CUDA_SUCCESS, uint64_t freed = 0, uint16_t flags = 0) {
    wire::MessageHeader header;
    header.length = static_cast<uint32_t>(body.size());
    header.kind = kind;
    header.flags = flags;
    header.result = result;
    header.sequence = sequence;
    header.retired = freed;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += body;
    connection.feed_bytes(std::as_bytes(std::span(bytes)));
  }
  void data(uint64_t sequence, uint64_t offset, const std::string& bytes) {
    wire::DeviceData head{};
    head.offset = offset;
    message(wire::MessageKind::device_data, sequence,
            std::string(reinterpret_cast<const char*>(&head), sizeof head) + bytes);
  }
  size_t failed() const {
    const std::lock_guard lock(mutex);
    return failures.size();
  }

 private:
  explicit Line(std::chrono::milliseconds dead_peer_timeout)
      : receiver(connection, dead_peer_timeout,
                 {.ping = [this] { ++pings, answer(); },
                  .host_callback =
                      [this](uint64_t callback, uint64_t command, CUresult result) {
                        const std::lock_guard lock(mutex);
                        callbacks.push_back({callback, command, static_cast<uint64_t>(result)});
                      },
                  .retired =
                      [this](uint64_t sequence) {
                        const std::lock_guard lock(mutex);
                        retired.push_back(sequence);
                      },
                  .failed =
                      [this](Error error) {
                        const std::lock_guard lock(mutex);
                        failures.push_back(std::move(error));
                      }}) {}
};

struct Awaited : Waiter {
  Awaited(Line& line, uint64_t number) {
    sequence = number;
    line.receiver.expect(*this);
  }
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

}  // namespace gpupool::client::test
