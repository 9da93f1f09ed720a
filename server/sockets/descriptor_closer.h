// Closes descriptors whose last close may block: sockets that a worker holds as well (it may have set
// SO_LINGER), and Unix sockets, whose unread messages may hold descriptors of any kind (before Linux 6.16).
//
// Short-lived child processes do this by exiting: poold forks a child, which has copies of the descriptors,
// closes its own, and lets the child exit. The kernel does not linger for a process that exits, and where a
// close blocks all the same (a FUSE file), only the child waits. Unix sockets have children of their own, so
// that other descriptors never wait for a descriptor in a message. Runs on poold's thread.
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
  // Limit for each of the two kinds. Children remain while a close never returns; beyond the limit one more
  // starts each second and takes all waiting descriptors.
  static constexpr size_t kMostHelpers = 64;
  static constexpr std::chrono::milliseconds kPause{20}, kPauseBeyond{1'000};

  // At most one object exists at a time, for close_without_blocking().
  explicit DescriptorCloser(asio::io_context& context);
  // Descriptors that still wait are closed when this process exits.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Takes ownership of the descriptor, which stays open for a moment. Descriptors of one turn of the event
  // loop are closed together.
  void close(int descriptor);
  // Calls `done` when this process has closed all descriptors that it was given so far.
  void then(std::function<void()> done);
  bool idle() const { return nothing_waits() && helpers() == 0; }
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
  // Number of closed batches; shared with the children, which wait for it to change.
  std::atomic<uint32_t>* const closed_;
  bool scheduled_ = false;
};

// Closes the descriptor with this process's DescriptorCloser, or at once if there is none: in a worker, or
// when poold is ending.
void close_without_blocking(int descriptor);
// Calls `done` when all descriptors passed to close_without_blocking() so far are closed.
void after_closing(std::function<void()> done);
// Closes a client's connection that no other process holds. The peer sees its end at once; unread data is
// lost.
void close_connection(int socket);

}  // namespace gpupool::server
