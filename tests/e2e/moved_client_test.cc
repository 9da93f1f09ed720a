// A client whose network address is replaced by another one goes on from there. Client and server are in
// network namespaces of this test, so that no address outside is touched.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tests/e2e/json.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kServer = "10.212.0.1", kClient = "10.212.0.2", kMoved = "10.212.0.3";

// Moves this process, which gets the server's address, to a new network namespace. Returns why that is
// impossible, or "".
std::string leave_network() {
  if (::geteuid() != 0) return "network namespaces need root";
  if (run_to_end({"sh", "-c", "command -v ip && command -v nsenter && command -v unshare"}).status != 0)
    return "ip (package iproute2), nsenter or unshare (util-linux) is missing";
  if (::unshare(CLONE_NEWNET) != 0)
    return std::string("cannot create a network namespace: ") + std::strerror(errno);
  const Finished link = run_to_end({"ip", "link", "add", "test0", "type", "veth", "peer", "name", "test1"});
  if (link.status != 0) return "cannot create a pair of network interfaces: " + link.output;
  (void)run_to_end({"ip", "link", "del", "test0"});
  return "";
}

void must(const std::vector<std::string>& words) {
  const Finished finished = run_to_end(words);
  INFO(words[0] << ": " << finished.output);
  REQUIRE(finished.status == 0);
}

// A network namespace that is connected with this process's.
class ClientNetwork {
 public:
  ClientNetwork() : holder_({"unshare", "-n", "sleep", "1000"}, {}) {
    REQUIRE(eventually([&] { return space_of(holder_.pid()) != space_of(::getpid()); }));
    must({"ip", "link", "set", "dev", "lo", "up"});
    must({"ip", "link", "add", "server0", "type", "veth", "peer", "name", "client0", "netns", pid()});
    must({"ip", "addr", "add", kServer + "/24", "dev", "server0"});
    must({"ip", "link", "set", "dev", "server0", "up"});
    must(inside({"ip", "link", "set", "dev", "lo", "up"}));
    must(inside({"ip", "addr", "add", kClient + "/24", "dev", "client0"}));
    must(inside({"ip", "link", "set", "dev", "client0", "up"}));
  }
  ~ClientNetwork() { ::kill(holder_.pid(), SIGKILL); }
  std::vector<std::string> inside(std::vector<std::string> words) const {
    words.insert(words.begin(), {"nsenter", "-t", pid(), "-n"});
    return words;
  }

 private:
  std::string pid() const { return std::to_string(holder_.pid()); }
  static std::string space_of(pid_t pid) {
    std::error_code gone;
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/net", gone).string();
  }
  Process holder_;
};

}  // namespace

TEST_CASE("a client whose address changes goes on from the new one") {
  if (const std::string why = leave_network(); !why.empty()) return report_skip(why);
  const ClientNetwork client;
  Pool pool({}, {"--listen", "tcp://" + kServer + ":0", "--insecure"});
  const std::string url = "tcp://" + kServer + ":" + std::to_string(pool.poold().port());
  Process app(client.inside({driver_app(), "counting", "1000000", "4000"}),
              pool.through({{"GPUPOOL", url}, {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "600"}}));
  REQUIRE(app.await_output("working"));
  const auto session = [&] {
    const Finished listed = run_to_end(
        {program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "--json", "sessions"});
    INFO(listed.output);
    const auto sessions = parse_json(listed.output);
    REQUIRE(sessions.size() == 1);
    return sessions[0];
  };

  must(client.inside({"ip", "addr", "del", kClient + "/24", "dev", "client0"}));
  must(client.inside({"ip", "addr", "add", kMoved + "/24", "dev", "client0"}));
  REQUIRE(pool.poold().await_log("session_resumed"));
  const auto resumes = lines_with(pool.poold().log(), "session_resumes ");
  REQUIRE(!resumes.empty());
  CHECK(resumes.front().find("client=" + kMoved + ":") != std::string::npos);
  // The program checks its results after each round.
  const auto calls = session()["calls"].get<uint64_t>();
  CHECK(eventually([&] { return session()["calls"].get<uint64_t>() > calls + 100; }));
  CHECK(session()["resumed"] >= 1);
  ::kill(app.pid(), SIGKILL);
}
