// `top`: snapshots that come over a stream, drawn in place on a terminal or printed one after the other.
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
  uint64_t count = 0;  // pictures, then it ends; 0: until q, Ctrl-C or SIGTERM. A single picture is of the second snapshot
  bool json = false;   // one line of JSON per snapshot
};

// Those that end top, as something to poll. To be made before any thread, so that none of them gets the signals.
class TopSignals {
 public:
  TopSignals();
  ~TopSignals();
  TopSignals(const TopSignals&) = delete;
  TopSignals& operator=(const TopSignals&) = delete;
  int descriptor() const { return descriptor_; }
  int next() const;
  // Whether one other than SIGWINCH comes within this time.
  bool ends(std::chrono::milliseconds patience) const;

 private:
  int descriptor_;
};

// False: the user has had enough.
bool handle_key(int& keys);

// Whose snapshots, and how they look.
template <class Snapshot>
struct LiveView {
  const char* who;
  std::function<std::unique_ptr<grpc::ClientReader<Snapshot>>(grpc::ClientContext&)> open;
  std::function<void(const grpc::Status&)> check;  // throws Failure
  std::function<std::string(const Snapshot& now, const Snapshot* before, size_t width)> picture;
  std::function<std::string(const Snapshot&)> json_line;
};

// A thread that receives; the newest snapshot waits for the other.
template <class Snapshot>
class SnapshotStream {
 public:
  explicit SnapshotStream(const LiveView<Snapshot>& view) : view_(view), wake_(::eventfd(0, EFD_CLOEXEC)), reader_(view.open(context_)) {
    thread_ = std::thread([this] { run(); });
  }
  ~SnapshotStream() {
    context_.TryCancel();
    thread_.join();
    ::close(wake_);
  }
  // Readable when next() has something.
  int descriptor() const { return wake_; }
  // Throws Failure at the end of the other side.
  std::optional<Snapshot> next() {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    if (newest_) return std::exchange(newest_, std::nullopt);
    if (end_) view_.check(*end_);
    if (end_) throw Failure(kExitUnreachable, std::string(view_.who) + " has ended");
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
  std::mutex mutex_;  // the next two
  std::optional<Snapshot> newest_;
  std::optional<grpc::Status> end_;
  std::thread thread_;
};

// On a terminal it draws in place, else it prints one snapshot after the other. Throws Failure when the other side ends.
template <class Snapshot>
void run_live(const LiveView<Snapshot>& view, const TopSignals& signals, const TopOptions& options) {
  SnapshotStream<Snapshot> stream(view);
  std::optional<Screen> screen;
  if (!options.json && ::isatty(STDOUT_FILENO)) screen.emplace();
  int keys = screen ? STDIN_FILENO : -1;
  std::optional<Snapshot> before, now;
  const auto draw = [&] { screen->draw(view.picture(*now, before ? &*before : nullptr, screen->width())); };
  for (uint64_t count = 0; options.count == 0 || count < options.count;) {
    std::array<pollfd, 3> polled{{{stream.descriptor(), POLLIN, 0}, {signals.descriptor(), POLLIN, 0}, {keys, POLLIN, 0}}};
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
    const std::string text = options.json ? view.json_line(*now) : view.picture(*now, before ? &*before : nullptr, terminal_width()) + "\n";
    show(text);
    if (std::fflush(stdout) != 0) return;  // whoever read it has left
  }
}

}  // namespace gpupool::admin
