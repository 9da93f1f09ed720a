// The display loop of `pool-admin top`: receives snapshots over a gRPC stream, and redraws the screen on a
// terminal or prints one snapshot after the other. Used by top.cc (poold) and pool/commands.cc (scheduler).
// The caller's thread draws; one more thread receives. Throws Failure.
#pragma once
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "scheduler/admin/failure.h"
#include "scheduler/admin/terminal.h"

namespace gpupool::admin {

struct TopOptions {
  std::chrono::milliseconds interval{1'000};
  // Number of snapshots to show; 0: until q, Ctrl-C or SIGTERM. With 1, the second snapshot is shown, because
  // rates need two.
  uint64_t count = 0;
  bool json = false;  // one line of JSON per snapshot
};

// A signalfd for the signals that end `top`, and SIGWINCH. Construct it before any thread starts, so that all
// threads inherit the signal mask.
class TopSignals {
 public:
  TopSignals();
  ~TopSignals();
  TopSignals(const TopSignals&) = delete;
  TopSignals& operator=(const TopSignals&) = delete;
  int descriptor() const { return descriptor_; }
  int next() const;  // the next pending signal; 0: none
  // Returns true if a signal other than SIGWINCH arrives within this time.
  bool wait_for_end(std::chrono::milliseconds timeout) const;

 private:
  int descriptor_;
};

// Reads the pressed keys. Returns false if the user pressed q. Sets `keys` to -1 at the end of the input.
bool handle_key(int& keys);

// The source of the snapshots and their presentation.
template <class Snapshot>
struct LiveView {
  const char* program;
  std::function<std::unique_ptr<grpc::ClientReader<Snapshot>>(grpc::ClientContext&)> open;
  std::function<void(const grpc::Status&)> check;  // throws Failure
  std::function<std::string(const Snapshot& now, const Snapshot* before, size_t width)> render;
  std::function<std::string(const Snapshot&)> json_line;
};

// Receives the snapshots on a thread of its own and keeps the newest one for next().
template <class Snapshot>
class SnapshotStream {
 public:
  explicit SnapshotStream(const LiveView<Snapshot>& view)
      : view_(view), wake_(::eventfd(0, EFD_CLOEXEC)), reader_(view.open(context_)) {
    thread_ = std::thread([this] { run(); });
  }
  ~SnapshotStream() {
    context_.TryCancel();
    thread_.join();
    ::close(wake_);
  }
  // Becomes readable when next() should be called.
  int descriptor() const { return wake_; }
  // Returns the newest snapshot, or null if there is none yet. Throws Failure when the stream has ended.
  std::optional<Snapshot> next() {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    if (newest_) return std::exchange(newest_, std::nullopt);
    if (end_) view_.check(*end_);
    if (end_) throw Failure(kExitUnreachable, std::string(view_.program) + " has closed the connection");
    return std::nullopt;
  }

 private:
  void run() {
    Snapshot snapshot;
    while (reader_->Read(&snapshot)) {
      {
        const std::lock_guard lock(mutex_);
        newest_ = std::move(snapshot);
      }
      wake();
    }
    const grpc::Status end = reader_->Finish();
    {
      const std::lock_guard lock(mutex_);
      end_ = end;
    }
    wake();
  }
  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  }

  const LiveView<Snapshot>& view_;
  const int wake_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReader<Snapshot>> reader_;
  std::mutex mutex_;  // protects newest_ and end_
  std::optional<Snapshot> newest_;
  std::optional<grpc::Status> end_;
  std::thread thread_;
};

// Runs until options.count, q or a signal. Redraws the screen if stdout is a terminal and JSON is not
// requested, else prints one snapshot after the other. Throws Failure when the stream ends.
template <class Snapshot>
void run_live(const LiveView<Snapshot>& view, const TopSignals& signals, const TopOptions& options) {
  SnapshotStream<Snapshot> stream(view);
  std::optional<Screen> screen;
  if (!options.json && ::isatty(STDOUT_FILENO)) screen.emplace();
  int keys = screen ? STDIN_FILENO : -1;
  std::optional<Snapshot> before, now;
  const auto draw = [&] { screen->draw(view.render(*now, before ? &*before : nullptr, screen->width())); };
  for (uint64_t count = 0; options.count == 0 || count < options.count;) {
    std::array<pollfd, 3> polled{
        {{stream.descriptor(), POLLIN, 0}, {signals.descriptor(), POLLIN, 0}, {keys, POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[2].revents != 0 && !handle_key(keys)) return;
    if (polled[1].revents != 0) {
      if (signals.next() != SIGWINCH) return;
      if (screen && now) draw();
    }
    if (polled[0].revents == 0) continue;
    auto next = stream.next();
    if (!next) continue;
    before = std::exchange(now, std::move(next));
    if (options.count == 1 && !before && !options.json) {  // rates need two snapshots
      if (screen) draw();
      continue;
    }
    ++count;
    if (screen) {
      draw();
      continue;
    }
    const std::string text = options.json
                                 ? view.json_line(*now)
                                 : view.render(*now, before ? &*before : nullptr, terminal_width()) + "\n";
    show(text);
    if (std::fflush(stdout) != 0) return;  // the reader has closed the pipe
  }
}

}  // namespace gpupool::admin
