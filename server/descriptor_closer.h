// Closes descriptors whose last close may wait for somebody else: sockets that a worker has got as well (it may have set SO_LINGER), and Unix
// sockets, whose unread messages may hold descriptors of any kind (before Linux 6.16).
//
// Short-lived child processes do it by ending: poold forks one, which has copies of them all, closes its own, and lets the child go. The kernel
// does not linger for a process that ends, and where it waits all the same (a FUSE file), only the child does. Unix sockets have children of their
// own, so that other descriptors never wait behind what somebody has sent. poold's one thread.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace gpupool::server {

class DescriptorCloser {
 public:
  // Of each of the two kinds. They stay where a close never ends; then one more starts each second and takes all that waits.
  static constexpr size_t kMostHelpers = 64;
  static constexpr std::chrono::milliseconds kPause{20}, kPauseBeyond{1'000};

  // At most one exists at a time. close_elsewhere() uses it.
  explicit DescriptorCloser(asio::io_context& context);
  // Leaves what is not closed yet to the end of this process.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Takes over the descriptor, which stays open for a moment. Those of one turn of the loop go together.
  void close(int descriptor);
  // Calls `done` when this process has closed all that it was given so far.
  void then(std::function<void()> done);
  size_t helpers() const { return others_.helpers.size() + unix_.helpers.size(); }

 private:
  struct Helper {
    pid_t pid;
    std::chrono::steady_clock::time_point since;
  };
  struct Lane {
    std::vector<int> waiting;
    std::vector<Helper> helpers;  // oldest first
    bool warned = false;
  };
  void tend();
  void tend(Lane& lane);
  void schedule(std::chrono::milliseconds pause);
  void start_helper(Lane& lane);
  bool nothing_waits() const { return others_.waiting.empty() && unix_.waiting.empty(); }

  asio::steady_timer timer_;
  Lane others_, unix_;
  std::vector<std::function<void()>> done_;
  std::atomic<uint32_t>* const closed_;  // batches; shared with helpers, which wait for it
  bool scheduled_ = false;
};

// By the process's DescriptorCloser, or at once where there is none: in a worker, and once poold is over.
void close_elsewhere(int descriptor);
// Calls `done` when that has happened to all descriptors so far.
void after_closing(std::function<void()> done);
// A client's connection that no other process has had. Its peer sees the end at once. What has come and was not read is lost.
void close_connection(int socket);

}  // namespace gpupool::server
