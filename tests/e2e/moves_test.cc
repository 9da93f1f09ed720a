// Programs compute the same while their sessions move between two servers at random moments. In some runs
// the link between the servers is cut, or the worker on one side is killed in the middle of a move: then the
// session is whole on one side, or its program learns that it is lost. With MOVES in the environment the test
// goes on until there were so many; SEED and PROGRAM repeat a failed run.
#include <signal.h>

#include <array>
#include <optional>
#include <random>
#include <thread>

#include "tests/e2e/pool_admin.h"
#include "tests/e2e/steady_programs.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/catch.h"
#include "tests/support/cutting_proxy.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

using std::chrono::milliseconds;

enum class Trouble { none, cut_link, killed_target, killed_source };

// Returns the fault of the run with this seed. Two runs of five have none.
Trouble trouble_of(uint32_t seed) {
  constexpr std::array kAll{Trouble::none, Trouble::cut_link, Trouble::none, Trouble::killed_target,
                            Trouble::killed_source};
  return kAll[seed % kAll.size()];
}

const char* name_of(Trouble trouble) {
  switch (trouble) {
    case Trouble::none: return "no trouble";
    case Trouble::cut_link: return "the link is cut";
    case Trouble::killed_target: return "the target is killed";
    case Trouble::killed_source: return "the source is killed";
  }
  return "";
}

uint64_t free_memory(TwoHosts& hosts, size_t host) {
  const std::string output = run_patiently({driver_app(), "free_memory"}, hosts.through(host)).output;
  INFO(output);
  REQUIRE(output.starts_with("free "));
  return std::stoull(output.substr(5));
}

// Runs a program once, whose session starts on the first server and moves back and forth until its end.
class Run {
 public:
  Run(TwoHosts& hosts, const std::vector<std::string>& program, uint32_t seed)
      : hosts_(hosts), trouble_(trouble_of(seed)), random_(seed), app_(words_of(program), hosts.through(0)) {
    if (trouble_ != Trouble::cut_link) return;
    for (size_t host = 0; host < TwoHosts::kCount; ++host) {
      const transport::Endpoint server{"tcp", "127.0.0.1", hosts[host].poold().port()};
      proxies_[host].emplace(server, 300'000, seed);
    }
  }

  void move_until_end() {
    const auto stop = std::chrono::steady_clock::now() + kLongPatience;
    while (!ended() && std::chrono::steady_clock::now() < stop) {
      const auto at = where();
      if (!at) continue;
      std::this_thread::sleep_for(milliseconds(random_() % 60));
      const bool kills = trouble_ == Trouble::killed_source || trouble_ == Trouble::killed_target;
      move(*at, kills && !killed_);
    }
    status_ = app_.wait(kLongPatience);
  }
  Finished finished() const { return {status_, app_.output()}; }
  unsigned moves() const { return moves_; }
  bool killed() const { return killed_; }
  // True if the worker was killed that had the session alone, or may have had.
  bool may_be_lost() const { return may_be_lost_; }

 private:
  struct Place {
    size_t host;
    uint64_t session;
    pid_t worker;
  };
  bool ended() { return app_.wait(milliseconds(0)) != -1; }
  // Returns nothing while a host still lists the session that has left it.
  std::optional<Place> where() {
    std::optional<Place> place;
    for (size_t host = 0; host < TwoHosts::kCount; ++host) {
      for (const Json& session : sessions_of(hosts_[host])) {
        if (place) return {};
        place = Place{host, session["number"], session["worker_pid"]};
      }
    }
    return place;
  }
  std::string address(size_t host) const {
    return hosts_.url(proxies_[host] ? proxies_[host]->endpoint().port : hosts_[host].poold().port());
  }
  void move(const Place& from, bool kills) {
    Process admin(admin_words(hosts_[from.host].poold(), {"--json", "migrate", std::to_string(from.session),
                                                          "--to", address(1 - from.host), "--timeout", "30"}),
                  {});
    if (kills) kill_a_worker(from);
    const bool migrated = admin.wait(kLongPatience) == 0;
    moves_ += migrated ? 1 : 0;
    if (kills && killed_) may_be_lost_ = migrated == (trouble_ == Trouble::killed_target);
  }
  void kill_a_worker(const Place& from) {
    std::this_thread::sleep_for(milliseconds(random_() % 60));
    pid_t worker = from.worker;
    if (trouble_ == Trouble::killed_target) {
      const Json there = sessions_of(hosts_[1 - from.host]);
      if (there.empty()) return;  // it has not come yet, or the program has ended
      worker = there[0]["worker_pid"];
    }
    killed_ = ::kill(worker, SIGKILL) == 0;
  }

  TwoHosts& hosts_;
  const Trouble trouble_;
  std::mt19937 random_;
  std::array<std::optional<CuttingProxy>, TwoHosts::kCount> proxies_;
  Process app_;
  int status_ = -1;
  unsigned moves_ = 0;
  bool killed_ = false, may_be_lost_ = false;
};

// The program for so long that its session can move a few times.
std::vector<std::string> many_times(std::vector<std::string> program) {
  program.insert(program.begin(), {"--times", "8"});
  return program;
}

bool says_that_it_is_lost(const std::string& output) {
  return !lines_with(output, "CUDA_ERROR_DEVICE_UNAVAILABLE").empty() ||
         !lines_with(output, "lost the connection to server").empty();
}

bool is_idle(TwoHosts& hosts) {
  return eventually([&] { return sessions_of(hosts[0]).empty() && sessions_of(hosts[1]).empty(); });
}

// Which programs of kSteadyPrograms run without MOVES in the environment, with which all of them do.
enum class Programs { all, every_second };

// Runs the programs, each at least once, until there were `least` moves.
void pass_despite_moves(TwoHosts& hosts, unsigned least, Programs programs) {
  const std::array free_before{free_memory(hosts, 0), free_memory(hosts, 1)};
  const unsigned wanted = number_in("MOVES", least);
  uint32_t seed = number_in("SEED", 1);
  unsigned moves = 0, killed = 0, lost = 0, runs = 0;
  const size_t step = programs == Programs::all || std::getenv("MOVES") != nullptr ? 1 : 2;
  for (bool first = true; first || moves < wanted; first = false) {
    const unsigned before = moves;
    for (size_t i = step - 1; i < kSteadyPrograms.size(); i += step) {
      const auto& program = kSteadyPrograms[i];
      if (is_left_out(program)) continue;
      const auto repeated = many_times(program);
      const Finished& direct = directly(hosts[0], repeated);
      Run run(hosts, repeated, seed++);
      run.move_until_end();
      const Finished pooled = run.finished();
      INFO(program.front() << " with seed " << seed - 1 << " after " << run.moves() << " moves, "
                           << name_of(trouble_of(seed - 1)));
      INFO("directly: " << direct.output << "\nthrough poold: " << pooled.output);
      const bool same = pooled.status == direct.status && pooled.output == direct.output;
      const bool is_lost = !same && run.may_be_lost() && says_that_it_is_lost(pooled.output);
      INFO("first poold: " << (same ? "" : end_of_log(hosts[0])));
      INFO("second poold: " << (same ? "" : end_of_log(hosts[1])));
      CHECK((same || is_lost));
      const bool idle = is_idle(hosts);
      INFO("poolds that do not become idle: " << (idle ? "" : end_of_log(hosts[0]) + end_of_log(hosts[1])));
      CHECK(idle);
      moves += run.moves(), killed += run.killed() ? 1 : 0, lost += is_lost ? 1 : 0, ++runs;
    }
    REQUIRE((moves > before || runs < kSteadyPrograms.size() / step));  // PROGRAM is set
  }
  std::printf("%u moves in %u runs, %u workers killed, %u programs lost\n", moves, runs, killed, lost);
  for (size_t host = 0; host < TwoHosts::kCount; ++host) {
    CHECK(
        eventually([&] { return free_memory(hosts, host) == free_before[host]; }, std::chrono::seconds(20)));
  }
}

}  // namespace

TEST_CASE("programs pass although their sessions move at random moments") {
  TwoHosts hosts(TwoHosts::Ports::tcp);
  pass_despite_moves(hosts, kSanitized ? 6 : 30, Programs::all);
}

TEST_CASE("programs pass although their encrypted sessions move at random moments") {
  TwoHosts hosts(TwoHosts::Ports::tls);
  pass_despite_moves(hosts, kSanitized ? 6 : 10, Programs::every_second);
}
