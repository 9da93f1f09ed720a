// Leases that move from one node of a whole pool to the other one while their programs run.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/e2e/leased_program.h"
#include "tests/support/certificates.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr int kBackAndForth = kSanitized ? 2 : 6;

// Runs pool-admin until the scheduler has executed the command, which may be repeated: the answer of a busy
// scheduler may be late.
void order(const WholePool& pool, const std::vector<std::string>& words) {
  Finished said;
  const bool done = eventually([&] {
    said = pool.run_pool_admin(words);
    return said.status == 0;
  });
  INFO(said.output);
  REQUIRE(done);
}

// Gives moves as much time as the tests have: on a busy machine one may take longer than the policy's 60 s,
// and nobody repeats an operator's move that was turned round.
class MovingPool : public WholePool {
 public:
  explicit MovingPool(const std::vector<std::string>& options = {}) : WholePool({}, {}, options) {
    const auto limit = std::chrono::duration_cast<std::chrono::seconds>(kLongPatience);
    order(*this, {"policy", "set", "move=" + std::to_string(limit.count())});
  }
};

std::vector<std::string> nodes_of(const Json& leases) {
  std::vector<std::string> nodes;
  for (const Json& lease : leases) nodes.push_back(lease.at("parts").at(0).at("node"));
  return nodes;
}

// The nodes of each lease, in the order of the list.
std::vector<std::string> nodes_of_leases(const WholePool& pool) {
  return nodes_of(json_of(pool, {"leases"}));
}

bool moves(const Json& leases) {
  return std::any_of(leases.begin(), leases.end(),
                     [](const Json& lease) { return !lease.at("moves").empty(); });
}

bool has_failed_move(const Json& leases) {
  return std::any_of(leases.begin(), leases.end(), [](const Json& lease) {
    const Json& moves = lease.at("moves");
    return std::any_of(moves.begin(), moves.end(),
                       [](const Json& move) { return move.at("state") == "failed"; });
  });
}

// Returns what explains why leases are not where they should be.
std::string state_of(WholePool& pool, const std::vector<const Process*>& programs) {
  const Json leases = json_of(pool, {"leases"});
  std::string text = "leases: " + leases.dump();
  for (const Json& lease : leases)
    text += "\nwhy: " + pool.pool_admin({"why", lease.at("id").get<std::string>()});
  for (const Process* const program : programs) text += "\nprogram: " + program->output();
  text += "\nscheduler: " + pool.scheduler().log();
  text += "\none: " + pool.first().poold().log();
  return text + "\ntwo: " + pool.second().poold().log();
}

// Waits until the leases of these programs, one each, are on this node and none moves. Fails the test as soon
// as that cannot come: a lease is gone, or its move has failed.
void await_all_on(WholePool& pool, const std::string& node, const std::vector<const Process*>& programs) {
  bool there = false;
  (void)eventually(
      [&] {
        const Json all = json_of(pool, {"leases"});
        there = !moves(all) && nodes_of(all) == std::vector<std::string>(programs.size(), node);
        return there || all.size() < programs.size() || has_failed_move(all);
      },
      kLongPatience);
  INFO((there ? std::string() : state_of(pool, programs)));
  REQUIRE(there);
}

// Begins to move the lease. A node is not open for a while after it was slow to report, and an answer may be
// late: then the move has begun already.
void begin_move(const WholePool& pool, const std::string& lease, const std::string& node) {
  Finished said;
  const bool begun = eventually([&] {
    said = pool.run_pool_admin({"move", lease, "--to", node});
    return said.status == 0 || has(said.output, "already");
  });
  INFO(said.output);
  REQUIRE(begun);
}

std::string other(const std::string& node) {
  return node == "one" ? "two" : "one";
}

// Moves the pool's only lease, which is the program's, from this node to the other one, which it returns.
std::string move_from(WholePool& pool, const Leased& program, const std::string& lease,
                      const std::string& node) {
  begin_move(pool, lease, other(node));
  await_all_on(pool, other(node), {&program.app});
  return other(node);
}

// Returns the pool-lease that holds the lease of this program, which is its last argument.
pid_t pool_lease_of(const Process& program) {
  const std::string argument = '\0' + std::to_string(program.pid()) + '\0';
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(process.path() / "cmdline");
    const std::string words(std::istreambuf_iterator<char>(file), {});
    if (words.find("pool-lease") < words.find('\0') && words.ends_with(argument))
      return std::stoi(process.path().filename());
  }
  FAIL("no pool-lease runs for the program");
  return 0;
}

// A process that is stopped as long as this object exists, or until go_on().
class Stopped {
 public:
  explicit Stopped(pid_t process) : process_(process) { ::kill(process, SIGSTOP); }
  ~Stopped() { go_on(); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  void go_on() const { ::kill(process_, SIGCONT); }

 private:
  const pid_t process_;
};

}  // namespace

TEST_CASE("a lease moves to the other node and back while its program runs") {
  MovingPool pool;
  Leased program(pool);
  std::string node = nodes_of_leases(pool).at(0);
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  for (int move = 0; move < kBackAndForth; ++move) {
    node = move_from(pool, program, lease, node);
  }
  CHECK(json_of(pool, {"leases"})[0]["id"] == lease);
  program.expect_nothing_lost();
  CHECK(pool.is_idle());
  // Nothing remains of it on either node: all of the pool can be leased at once.
  const Finished all = run_patiently(pool.command({"--gpus", "4"}, {driver_app(), "list_devices"}), {});
  INFO(all.output);
  CHECK(all.status == 0);
}

TEST_CASE("a lease moves between nodes with tls ports while its program runs") {
  const Authority authority("authority");
  const auto files = authority.sign("node", "IP:127.0.0.1");
  MovingPool pool(
      {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate, "--tls-key", files.key});
  // Not GPUPOOL_TLS_CA: this scheduler has no certificate.
  Leased program(pool, {}, {{"SSL_CERT_FILE", authority.certificate()}});
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  std::string node = nodes_of_leases(pool).at(0);
  for (int move = 0; move < 2; ++move) {
    node = move_from(pool, program, lease, node);
  }
  program.expect_nothing_lost();
}

TEST_CASE("a program whose lease has moved survives cut connections") {
  MovingPool pool;
  Leased program(pool);
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  std::string node = nodes_of_leases(pool).at(0);
  for (int move = 0; move < 2; ++move) {
    node = move_from(pool, program, lease, node);
    program.app.signal(SIGUSR1);
    Pool& here = node == "one" ? pool.first() : pool.second();
    CHECK(here.poold().await_log("session_resumed"));
  }
  program.expect_nothing_lost();
}

TEST_CASE("a host is drained by moving its leases and no program ends") {
  MovingPool pool;
  std::vector<std::unique_ptr<Leased>> programs;
  for (int i = 0; i < 4; ++i) programs.push_back(std::make_unique<Leased>(pool));
  const std::string drained = nodes_of_leases(pool).at(0);
  order(pool, {"drain", drained, "--move"});
  std::vector<const Process*> processes;
  for (const auto& program : programs) processes.push_back(&program->app);
  await_all_on(pool, other(drained), processes);
  Pool& left = drained == "one" ? pool.first() : pool.second();
  CHECK(has(run_to_end(admin_words(left.poold(), {"sessions"})).output, "no sessions"));
  CHECK(left.poold().stop() == 0);  // as for a new kernel
  for (const auto& program : programs) program->expect_nothing_lost();
}

TEST_CASE("programs that start under a lease that has moved use its new node") {
  MovingPool pool;
  const TemporaryFolder folder;
  const std::string go = folder.path() / "go";
  Process shell(pool.command({}, {"sh", "-c",
                                  driver_app() + " copies && echo first && until [ -e " + go +
                                      " ]; do sleep 0.05; done; " + driver_app() + " copies && echo second"}),
                {});
  REQUIRE(shell.await_output("first", kLongPatience));
  const std::string node = other(nodes_of_leases(pool).at(0));
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  begin_move(pool, lease, node);
  await_all_on(pool, node, {&shell});  // it has no session, so nothing has to travel
  std::ofstream(go) << "go";
  const int status = shell.wait(kLongPatience);
  INFO(shell.output());
  CHECK(status == 0);
  CHECK(has(shell.output(), "second"));
}

TEST_CASE("a program that starts before pool-lease hears of a move uses the new node") {
  MovingPool pool;
  const TemporaryFolder folder;
  const std::string go = folder.path() / "go";
  Process program(pool.command({}, {"sh", "-c",
                                    "echo leased; until [ -e " + go + " ]; do sleep 0.05; done; " +
                                        driver_app() + " copies"}),
                  {});
  REQUIRE(program.await_output("leased", kLongPatience));
  const std::string node = nodes_of_leases(pool).at(0);
  Pool& left = node == "one" ? pool.first() : pool.second();
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  const Stopped pool_lease(pool_lease_of(program));  // so that the lease file stays as it is
  begin_move(pool, lease, other(node));
  await_all_on(pool, other(node), {&program});
  std::ofstream(go) << "go";
  CHECK(left.poold().await_log("client_refused"));
  pool_lease.go_on();
  const int status = program.wait(kLongPatience);
  INFO(program.output());
  CHECK(status == 0);
}

TEST_CASE("a lease whose session cannot move stays and pool-admin says why") {
  WholePool pool;
  order(pool, {"policy", "set", "move=2"});
  const EndFile file;
  // It has arrays, and memory that it may share.
  Process app(pool.command({}, {driver_app(), "computes_on_all_kinds_until", file.end}), {});
  REQUIRE(app.await_output("round 1", kLongPatience));
  const std::string node = nodes_of_leases(pool).at(0);
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  begin_move(pool, lease, other(node));
  CHECK(eventually(
      [&] {
        return has(pool.pool_admin({"why", lease}), "which cannot migrate");
      },
      kLongPatience));
  CHECK(eventually(
      [&] {
        const Json moves = json_of(pool, {"leases"})[0]["moves"];
        return moves.size() == 1 && moves[0]["state"] == "failed";
      },
      kLongPatience));
  CHECK(nodes_of_leases(pool).at(0) == node);
  file.end_program();
  const int status = app.wait(kLongPatience);
  INFO(app.output());
  CHECK(status == 0);
}

TEST_CASE("leases go on while their hosts are upgraded") {
  MovingPool pool;
  std::vector<std::unique_ptr<Leased>> programs;
  for (int i = 0; i < 3; ++i) programs.push_back(std::make_unique<Leased>(pool));
  const auto leases = [&] {
    std::vector<std::string> ids;
    for (const Json& lease : json_of(pool, {"leases"})) ids.push_back(lease.at("id"));
    return ids;
  };
  const std::vector<std::string> before = leases();
  const std::vector<std::string> nodes = nodes_of_leases(pool);
  for (int round = 0; round < 2; ++round) {
    for (Pool* const host : {&pool.first(), &pool.second()}) {
      const Finished upgraded = pool_admin(*host, {"upgrade"});
      INFO(upgraded.output);
      CHECK(upgraded.status == 0);
    }
  }
  CHECK(leases() == before);
  CHECK(nodes_of_leases(pool) == nodes);
  // The scheduler still rules: it moves a lease to the other node, and a new one is granted.
  const std::string node = other(nodes.at(0));
  begin_move(pool, before.at(0), node);
  CHECK(eventually([&] { return nodes_of_leases(pool).at(0) == node; }, kLongPatience));
  const Finished another = run_patiently(pool.command({"--compute", "20"}, {driver_app(), "copies"}), {});
  INFO(another.output);
  CHECK(another.status == 0);
  for (const auto& program : programs) program->expect_nothing_lost();
  CHECK(pool.is_idle());
}
