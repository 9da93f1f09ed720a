// poold's part of the workers' confinement: their users.
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kDevice = FAKE_DEVICE_LIBRARY;

// As `uid uid uid uid` in /proc/PID/status; empty: the process is gone.
std::string users_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Uid:")) return line.substr(4);
  }
  return {};
}

uid_t user_of(pid_t process) {
  uid_t real = 0, effective = 0, saved = 0, files = 0;
  std::istringstream(users_of(process)) >> real >> effective >> saved >> files;
  CHECK((real == effective && effective == saved && saved == files));
  return real;
}

std::set<uid_t> users_of(const std::vector<pid_t>& processes) {
  std::set<uid_t> users;
  for (const pid_t process : processes) users.insert(user_of(process));
  return users;
}

}  // namespace

TEST_CASE("each session has a user of its own, which a later one gets again") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  PooldProcess poold(kDevice, {"--worker-users", "61100-61102", "--max-sessions", "2", "--idle-workers", "1", "--log-level", "debug"});
  std::set<uid_t> seen;
  for (size_t round = 0; round < 4; ++round) {
    RawClient first(poold.endpoint()), second(poold.endpoint());
    const auto one = static_cast<pid_t>(first.open().worker_pid), other = static_cast<pid_t>(second.open().worker_pid);
    CHECK(user_of(one) != user_of(other));
    REQUIRE(eventually([&] { return poold.workers().size() == 3 && users_of(poold.workers()).size() == 3 && !users_of(poold.workers()).contains(0); }));
    for (const uid_t user : users_of(poold.workers())) seen.insert(user);
    for (RawClient* const client : {&first, &second}) {
      client->ping();
      client->send_command(wire::Command::goodbye);
    }
    REQUIRE(poold.await_log("worker_gone", 2 * (round + 1)));
  }
  CHECK(seen == std::set<uid_t>{61100, 61101, 61102});
  CHECK(occurrences(poold.log(), "worker_start_failed") == 0);
}

TEST_CASE("two poolds do not share users for sessions") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  const PooldProcess poold(kDevice, {"--worker-users", "61110-61119", "--max-sessions", "2"});
  const Finished other = run_to_end({program_path("poold"), "--device", kDevice, "--listen", "tcp://127.0.0.1:0", "--admin-socket", "none", "--worker-users", "61110-61119",
                                     "--max-sessions", "2"});
  INFO(other.output);
  CHECK(other.status == 1);
  CHECK(other.output.find("give each poold a range of users of its own") != std::string::npos);
}

TEST_CASE("users for workers that make no sense are told at the start") {
  const auto [users, why] = GENERATE(table<std::string, std::string>({{"0", "is root"},
                                                                      {"0-100", "is no range"},
                                                                      {"200-100", "is no range"},
                                                                      {"100-4294967295", "is no range"},
                                                                      {"61100-61110", "has 11 users, but there may be 66 workers"}}));
  const Finished poold = run_to_end({program_path("poold"), "--worker-users", users});
  INFO(poold.output);
  CHECK(poold.status == 2);
  CHECK(poold.output.find("--worker-users: ") != std::string::npos);
  CHECK(poold.output.find(why) != std::string::npos);
}
