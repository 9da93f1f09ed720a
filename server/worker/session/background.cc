#include "server/worker/session/background.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "common/log/log.h"
#include "server/worker/copies/bandwidth.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kTick{1000};
// A command that has run for this long is not awaited any more when the client has gone.
constexpr std::chrono::milliseconds kOutlive{2000};
// But it has this time after it was told to stop, in which the session may be torn down. Shorter than kTick.
constexpr std::chrono::milliseconds kStopTime{500};
// Times after which a long command is logged. A driver call that never returns would be invisible otherwise.
constexpr std::chrono::seconds kReportAfter[] = {std::chrono::seconds(2), std::chrono::seconds(10)};

std::string hexadecimal(uint64_t value) {
  std::array<char, 19> text{};
  std::snprintf(text.data(), text.size(), "0x%" PRIx64, value);
  return text.data();
}

std::string stream_name(uint64_t stream) {
  return stream == CurrentCommand::kNoStream ? "none" : stream == 0 ? "legacy" : hexadecimal(stream);
}

// Logs a long command once at each of kReportAfter, and its end.
class LongCommand {
 public:
  explicit LongCommand(const SessionStart& start) : session_(start.session_number) {}

  // Warns only if the worker itself has no reason to wait; waits of its own, for example for its turn, are
  // logged as info.
  void check(const CurrentCommand& current_command) {
    const auto time = current_command.age();
    if (reported_ == std::size(kReportAfter) || time < kReportAfter[reported_]) return;
    ++reported_;
    const CurrentCommand::Command command = current_command.command();
    const char* const function = current_command.driver_function();
    const char* const waits_for = current_command.waits_for();
    command_ = command_name(command.id);
    seconds_ = std::chrono::duration_cast<std::chrono::seconds>(time).count();
    log::write(waits_for ? log::Level::info : log::Level::warning, "command_takes_long",
               {{"session", session_},
                {"command", command_},
                {"context", hexadecimal(command.context)},
                {"stream", stream_name(command.stream)},
                {"driver_function", function ? function : "none"},
                {"waits_for", waits_for  ? waits_for
                              : function ? "the driver"
                                         : "nothing"},
                {"seconds", seconds_}});
  }
  void ended() {
    if (reported_ != 0)
      log::info("long_command_ended",
                {{"session", session_}, {"command", command_}, {"seconds_at_least", seconds_}});
    reported_ = 0;
  }

 private:
  const uint64_t session_;
  size_t reported_ = 0;
  const char* command_ = "";
  int64_t seconds_ = 0;
};

}  // namespace

Background::Background(Session& session, int stop_descriptor)
    : session_(session),
      stop_descriptor_(stop_descriptor),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

Background::~Background() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(wake_);
}

void Background::run() {
  using Clock = std::chrono::steady_clock;
  const auto [out, error] = session_.capture.descriptors();
  pollfd polled[5] = {{wake_, POLLIN, 0},
                      {out, POLLIN, 0},
                      {error, POLLIN, 0},
                      {stop_descriptor_, POLLIN, 0},
                      {session_.migration_requests.descriptor(), POLLIN, 0}};
  uint64_t seen = 0;
  LongCommand long_command(session_.start);
  auto since = Clock::now();
  auto next_tick = Clock::now() + kTick;
  std::optional<Clock::time_point> stopped;
  const auto stop_if_over = [&] {
    if (stopped || !session_.outbox.over()) return;
    session_.compute.stop();
    session_.adoption.stop();
    stopped = Clock::now();
  };
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - Clock::now());
    ::poll(polled, 5, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0 || polled[2].revents != 0) session_.capture.drain();
    if (polled[3].revents != 0) {
      session_.outbox.end("poold is shutting down");
      polled[3].fd = -1;
    }
    if (polled[4].revents != 0) session_.migration_requests.send_to_client();
    stop_if_over();
    const auto now = Clock::now();
    if (now < next_tick) continue;
    next_tick = now + kTick;
    session_.migration_requests.rouse_client();
    const uint64_t current = session_.current_command.sequence();
    const auto* const bandwidth = session_.start.bandwidth.get();
    if (bandwidth && bandwidth->debt(Bandwidth::Direction::to_device) > std::chrono::nanoseconds(0)) {
      // The client's pings are held back behind data that exceeds its quota.
      session_.outbox.send_sign_of_life();
    }
    if (current == 0 || current != seen) {
      seen = current;
      since = now;
      long_command.ended();
      continue;
    }
    long_command.check(session_.current_command);
    session_.outbox.send_sign_of_life();
    stop_if_over();
    if (!stopped || now - since < kOutlive || now - *stopped < kStopTime) continue;
    // The executor is inside the driver and the client is gone. On exit the driver frees everything that the
    // process holds.
    std::_Exit(1);
  }
}

}  // namespace gpupool::worker
