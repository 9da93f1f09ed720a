#include "tests/bench/moves.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tests/bench/pauses.h"
#include "tests/bench/run_program.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
using testing::PooldProcess;
using testing::Process;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;  // the program's clock, too

constexpr int kMoves = 10, kQuickMoves = 2;  // in a round, of each size
constexpr std::chrono::seconds kMovePatience{120};
const std::vector<std::string> kMoving{"--resume-timeout", "60", "--peers", "127.0.0.0/8"};

// Memory, and how long its move may keep the program waiting.
struct Size {
  uint64_t bytes;
  const char* name;
  double silence_ms;
};
constexpr Size kSizes[] = {
    {64u << 20, "64MiB", 50}, {1u << 30, "1GiB", 80}, {uint64_t{4} << 30, "4GiB", 150}};
constexpr double kMostSilentPercent = 10;

Json ask(const PooldProcess& poold, std::vector<std::string> words) {
  words.insert(words.begin(),
               {testing::program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket(), "--json"});
  const auto answer = testing::run_to_end(words);
  const size_t begin = answer.output.find_first_of("[{");
  if (begin == std::string::npos) throw std::runtime_error(answer.output);
  return Json::parse(answer.output.substr(begin));
}

// The value of a key in the log's last line of this event.
double last_value(const PooldProcess& poold, const std::string& event, const std::string& key) {
  const std::string log = poold.log();
  const size_t line = log.rfind(event), at = log.find(" " + key + "=", line);
  if (line == std::string::npos || at == std::string::npos)
    throw std::runtime_error("the log has no " + key + " of " + event);
  return std::stod(log.substr(at + key.size() + 2));
}

}  // namespace

void Moves::round() {
  for (const Size& size : kSizes) {
    if (!quick_ || &size == kSizes) measure(size.bytes, by_bytes_[size.bytes]);
  }
}

void Moves::measure(uint64_t bytes, Measured& measured) {
  Environment environment = device_environment();
  environment["SOFTGPU_MEMORY"] = std::to_string(bytes + (1u << 30));
  // Each with a GPU of its own.
  const auto with_gpu = [&](const char* name) {
    environment["SOFTGPU_INSTANCE"] = name + std::to_string(::getpid());
    return environment;
  };
  std::array<PooldProcess, 2> poolds{PooldProcess(device_, kMoving, with_gpu("moves-1-")),
                                     PooldProcess(device_, kMoving, with_gpu("moves-2-"))};
  Process moved({program("gpupool-bench-moved"), std::to_string(bytes)},
                {{"LD_LIBRARY_PATH", prefix() / "lib" / "client"},
                 {"GPUPOOL", poolds[0].url()},
                 {"GPUPOOL_TRANSPORT", "tcp"}});
  if (!moved.await_output("working", kMovePatience)) throw std::runtime_error(moved.output());
  for (int move = 0; move < (quick_ ? kQuickMoves : kMoves); ++move) {
    const PooldProcess &from = poolds[static_cast<size_t>(move) % 2],
                       &to = poolds[1 - static_cast<size_t>(move) % 2];
    const Json session = ask(from, {"sessions"}).at(0);
    const auto start = Clock::now();
    const Json answer =
        ask(from, {"migrate", std::to_string(session.at("number").get<uint64_t>()), "--to", to.url()});
    if (!answer.at("migrated").get<bool>()) throw std::runtime_error(answer.dump());
    const auto end = Clock::now();
    if (!from.await_log("session_ended", static_cast<size_t>(move) / 2 + 1))
      throw std::runtime_error("a session that has moved does not end: " + from.log());
    // As long again, of the program alone.
    const auto then = Clock::now();
    std::this_thread::sleep_for(end - start);
    measured.silence_ms.push_back(longest_pause(moved, start, end));
    measured.usual_ms.push_back(longest_pause(moved, then, Clock::now()));
    measured.whole_ms.push_back(milliseconds(end - start));
    measured.silent_percent.push_back(100 * last_value(from, "session_sent", "last_bytes") /
                                      last_value(from, "session_sent", "bytes"));
  }
  moved.signal(SIGTERM);
  if (moved.wait(kMovePatience) != 0) throw std::runtime_error(moved.output());
}

void Moves::add_figures(std::vector<Figure>& all) const {
  for (const Size& size : kSizes) {
    const auto found = by_bytes_.find(size.bytes);
    if (found == by_bytes_.end()) continue;
    const Measured& measured = found->second;
    const std::string name = std::string("move_") + size.name, tcp = "tcp";
    const std::string beside = std::to_string(measured.silence_ms.size()) + " moves";
    using Kind = Target::Kind;
    all.push_back({name + "_silence_p50",
                   tcp,
                   percentile(measured.silence_ms, 50),
                   "ms",
                   "usual pause",
                   percentile(measured.usual_ms, 50),
                   {Kind::value_at_most, size.silence_ms}});
    all.push_back({name + "_silence_p99",
                   tcp,
                   percentile(measured.silence_ms, 99),
                   "ms",
                   "usual pause",
                   percentile(measured.usual_ms, 99),
                   {Kind::value_at_most, 2 * size.silence_ms}});
    all.push_back({name + "_sent_in_silence",
                   tcp,
                   percentile(measured.silent_percent, 50),
                   "%",
                   beside,
                   0,
                   {Kind::value_at_most, kMostSilentPercent}});
    all.push_back({name + "_whole", tcp, percentile(measured.whole_ms, 50), "ms", beside});
  }
}

}  // namespace gpupool::bench
