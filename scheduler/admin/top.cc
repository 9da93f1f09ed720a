#include "scheduler/admin/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "scheduler/admin/describe.h"
#include "scheduler/admin/table.h"
#include "scheduler/admin/terminal.h"
#include "scheduler/admin/to_json.h"

namespace gpupool::admin {
namespace {

// A thread that receives; the newest snapshot waits for the other.
class Stream {
 public:
  Stream(PooldClient& poold, std::chrono::milliseconds interval) : poold_(poold), wake_(::eventfd(0, EFD_CLOEXEC)) {
    WatchRequest request;
    request.set_interval_ms(static_cast<uint32_t>(interval.count()));
    reader_ = poold.stub().Watch(&context_, request);
    thread_ = std::thread([this] { run(); });
  }
  ~Stream() {
    context_.TryCancel();
    thread_.join();
    ::close(wake_);
  }
  // Readable when next() has something.
  int descriptor() const { return wake_; }
  // Throws Failure at poold's end.
  std::optional<Snapshot> next() {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    if (newest_) return std::exchange(newest_, std::nullopt);
    if (end_) poold_.check(*end_);
    if (end_) throw Failure(kExitUnreachable, "poold has ended");
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

  PooldClient& poold_;
  const int wake_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Snapshot>> reader_;
  std::mutex mutex_;  // the next two
  std::optional<Snapshot> newest_;
  std::optional<grpc::Status> end_;
  std::thread thread_;
};

std::string percent(uint64_t part, uint64_t whole) {
  std::array<char, 32> text{};
  const double value = whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  std::snprintf(text.data(), text.size(), "%.0f %%", value);
  return text.data();
}

uint64_t per_second(uint64_t count, uint64_t nanoseconds) {
  return nanoseconds == 0 ? 0 : static_cast<uint64_t>(static_cast<double>(count) * 1e9 / static_cast<double>(nanoseconds));
}

struct Used {
  uint64_t memory = 0, gpu = 0, throttled = 0;
};
Used used_by(const Session& session) {
  Used used;
  for (const SessionGpu& gpu : session.gpus()) {
    used.memory += gpu.memory_used_bytes();
    used.gpu += gpu.gpu_nanoseconds();
    used.throttled += gpu.throttled_nanoseconds();
  }
  return used;
}

uint64_t grown(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

template <class Messages, class Same>
auto find(const Messages& messages, Same same) -> decltype(&messages[0]) {
  for (const auto& message : messages) {
    if (same(message)) return &message;
  }
  return nullptr;
}

std::string gpus_picture(const Snapshot& now, const Snapshot* before, uint64_t elapsed, size_t width) {
  Table table({{"GPU", true}, {"NAME", false, 8}, {"BUSY", true}, {"MEMORY USED", true}, {"OF", true}, {"SESSIONS", true}});
  for (const Gpu& gpu : now.gpus()) {
    const Gpu* const old = before ? find(before->gpus(), [&](const Gpu& other) { return other.index() == gpu.index(); }) : nullptr;
    table.add({std::to_string(gpu.index()), gpu.name(),
               old ? percent(grown(gpu.gpu_nanoseconds(), old->gpu_nanoseconds()), elapsed) : "-",
               bytes_text(gpu.memory_used_bytes()), bytes_text(gpu.memory_total_bytes()), std::to_string(gpu.sessions())});
  }
  return table.text(width);
}

std::string sessions_picture(const Snapshot& now, const Snapshot* before, uint64_t elapsed, size_t width) {
  if (now.sessions().empty()) return "no sessions\n";
  Table table({{"SESSION", true}, {"TENANT", false, 8}, {"PROGRAM", false, 8}, {"HOST", false, 6, 30}, {"MEMORY", true}, {"GPU", true},
               {"THROTTLED", true, 0, 90}, {"CALLS/s", true, 0, 60}, {"IN/s", true, 0, 50}, {"OUT/s", true, 0, 50},
               {"ERRORS", true, 0, 40}, {"TIME", true, 0, 70}});
  for (const Session& session : now.sessions()) {
    const Session* const old =
        before ? find(before->sessions(), [&](const Session& other) { return other.number() == session.number(); }) : nullptr;
    const Used used = used_by(session);
    const Used was = old ? used_by(*old) : Used{};
    const auto rate = [&](uint64_t count, uint64_t count_before) { return per_second(grown(count, count_before), elapsed); };
    table.add({std::to_string(session.number()) + (session.ending() ? "!" : ""), session.tenant(), session.program(), session.host(),
               bytes_text(used.memory), old ? percent(grown(used.gpu, was.gpu), elapsed) : "-",
               old ? percent(grown(used.throttled, was.throttled), elapsed) : "-",
               old ? std::to_string(rate(session.calls(), old->calls())) : "-",
               old ? bytes_text(rate(session.bytes_from_client(), old->bytes_from_client())) : "-",
               old ? bytes_text(rate(session.bytes_to_client(), old->bytes_to_client())) : "-", std::to_string(session.errors()),
               duration_text(std::chrono::milliseconds(grown(static_cast<uint64_t>(now.taken_ms()), static_cast<uint64_t>(session.started_ms()))))});
  }
  return table.text(width);
}

// False: the user has had enough.
bool handle_key(int& keys) {
  std::array<char, 64> pressed;
  const ssize_t count = ::read(keys, pressed.data(), pressed.size());
  if (count <= 0) keys = -1;  // poll() leaves it out from now on
  for (ssize_t i = 0; i < count; ++i) {
    if (pressed[static_cast<size_t>(i)] == 'q' || pressed[static_cast<size_t>(i)] == 'Q') return false;
  }
  return true;
}

}  // namespace

std::string picture_of(const Snapshot& now, const Snapshot* before, size_t width) {
  const Poold& poold = now.poold();
  const uint64_t elapsed =
      before ? grown(static_cast<uint64_t>(now.taken_ms()), static_cast<uint64_t>(before->taken_ms())) * 1'000'000 : 0;
  std::string first = "poold " + poold.version() + ", up " +
                      duration_text(std::chrono::milliseconds(now.taken_ms() - poold.started_ms())) + ", " +
                      (poold.ready() ? "ready" : "not ready: " + poold.not_ready_because()) + ", " + std::to_string(poold.sessions()) +
                      " of " + std::to_string(poold.max_sessions()) + " sessions";
  if (width != 0) first = shortened(first, width);
  return first + "\n\n" + gpus_picture(now, before, elapsed, width) + "\n" + sessions_picture(now, before, elapsed, width);
}

TopSignals::TopSignals() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) ::sigaddset(&wanted, signal);
  ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
  descriptor_ = ::signalfd(-1, &wanted, SFD_CLOEXEC);
}

TopSignals::~TopSignals() { ::close(descriptor_); }

int TopSignals::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void run_top(PooldClient& poold, const TopSignals& signals, const TopOptions& options) {
  Stream stream(poold, options.interval);
  std::optional<Screen> screen;
  if (!options.json && ::isatty(STDOUT_FILENO)) screen.emplace();
  int keys = screen ? STDIN_FILENO : -1;
  std::optional<Snapshot> before, now;
  const auto draw = [&] { screen->draw(picture_of(*now, before ? &*before : nullptr, screen->width())); };
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
    ++count;
    if (screen) {
      draw();
      continue;
    }
    const std::string text = options.json ? line_of(json_of(*now)) : picture_of(*now, before ? &*before : nullptr, 0) + "\n";
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0) return;  // whoever read it has left
  }
}

}  // namespace gpupool::admin
