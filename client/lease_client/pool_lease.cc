// pool-lease: acquires GPUs from a pool's scheduler and holds them while the process that started it lives.
// Started by the client library (GPUPOOL=pool://...) and by pool-run.
//
// Prints one line on stdout, "granted FILE" (client/lease/file.h), "refused REASON" or "invalid REASON". It
// detaches from its parent, so that the program's own wait() calls do not see it.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "client/lease/file.h"
#include "client/lease_client/lease_client.h"
#include "client/process/log.h"
#include "client/process/settings.h"
#include "common/text/printable.h"
#include "common/version.h"

namespace {

using namespace gpupool;

// Time for the scheduler to acknowledge; otherwise the lease expires.
constexpr unsigned kReturnSeconds = 10;

constexpr const char* kHelp =
    "Usage: pool-lease pool://SCHEDULER:PORT?gpus=2&memory=8GiB&compute=50&... [PROGRAM [PID]]\n"
    "\n"
    "Acquires GPUs from a pool's scheduler and holds them while the process that started it\n"
    "(PID) lives. pool-run and GPUPOOL=pool://... start it; it is not meant to be run by\n"
    "hand.\n"
    "\n"
    "  --version     print the version\n"
    "  --help        print this text\n";

// The lease file. Thread-safe; after remove() it is not written any more.
class LeaseFile {
 public:
  ~LeaseFile() { remove(); }
  Result<void> make() {
    auto path = client::make_lease_folder();
    if (!path) return path.error();
    path_ = std::move(*path);
    return {};
  }
  Result<void> write(const std::vector<client::LeasedServer>& servers) {
    const std::lock_guard lock(mutex_);
    return path_.empty() ? Result<void>() : client::write_lease_file(path_, servers);
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    if (!path_.empty()) client::remove_lease_file(path_);
    path_.clear();
  }
  std::string path() const {
    const std::lock_guard lock(mutex_);
    return path_;
  }

 private:
  mutable std::mutex mutex_;
  std::string path_;
};

Result<void> add_server(const pool::Server& server, std::vector<client::LeasedServer>& to) {
  auto endpoint = transport::Endpoint::parse(server.address());
  if (!endpoint)
    return Error{ErrorCode::malformed,
                 "node " + server.node() + " has an invalid address: " + endpoint.error().message};
  to.push_back({std::move(*endpoint), server.token()});
  return {};
}

Result<std::vector<client::LeasedServer>> servers_of(const pool::Granted& granted) {
  std::vector<client::LeasedServer> servers;
  for (const auto& server : granted.servers()) {
    if (auto added = add_server(server, servers); !added) return added.error();
  }
  for (const pool::Move& move : granted.moves()) {
    if (move.server() >= servers.size() || !servers[move.server()].next.empty())
      return Error{ErrorCode::malformed, "the scheduler moves a server that the lease does not have"};
    if (auto added = add_server(move.to(), servers[move.server()].next); !added) return added.error();
  }
  return servers;
}

// Prints the answer; only the first call has an effect.
void answer(const std::string& line) {
  static bool answered = false;
  if (std::exchange(answered, true)) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  std::fclose(stdout);  // the reader continues at end of file
}

// Waits until the process has ended or this one gets a signal.
void await_end(int process, int signals) {
  pollfd watched[] = {{process, POLLIN, 0}, {signals, POLLIN, 0}};
  while (::poll(watched, 2, -1) < 0 && errno == EINTR) {
  }
}

int hold(pool::PoolAddress address, int process, int signals) {
  LeaseFile file;
  if (const auto made = file.make(); !made) return answer("refused " + made.error().message), 1;
  const client::Settings settings = client::settings_from_environment();
  bool granted_once = false;
  const auto granted = [&](const pool::Granted& grant) -> Result<void> {
    const auto servers = servers_of(grant);
    if (!servers) return servers.error();
    if (auto written = file.write(*servers); !written) return written;
    granted_once = true;
    answer("granted " + file.path());
    return {};
  };
  lease_client::LeaseClient client({.address = std::move(address),
                                    .token = settings.token,
                                    .tls = settings.tls,
                                    .renewed_token = client::token_from_environment},
                                   granted,
                                   [](const std::string& line) { client::log_error("%s", line.c_str()); });
  std::thread watcher([&] {
    await_end(process, signals);
    file.remove();  // before the alarm, which leaves no time for it
    ::alarm(kReturnSeconds);
    client.stop();
  });
  const Result<void> ended = client.run();
  if (!ended && granted_once) {
    client::log_error("%s", ended.error().message.c_str());
    (void)file.write({});  // programs that start now see that the lease is over
  }
  if (!granted_once)
    answer("refused " + printable(ended ? "pool-lease was terminated" : ended.error().message));
  if (!granted_once) ::kill(::getpid(), SIGTERM);  // ends the watcher
  watcher.join();
  return ended ? 0 : 1;
}

}  // namespace

int main(int, char** words) {
  const std::string word = words[1] ? words[1] : "--help";
  if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), words[1] ? 0 : 2;
  if (word == "--version") return std::printf("pool-lease %s\n", gpupool::kVersion), 0;
  auto address = pool::parse_pool_address(word);
  if (!address) return answer("invalid " + printable(address.error().message)), 2;

  ::syscall(SYS_close_range, 3u, ~0u, 0u);  // close the program's other descriptors
  // Get a pidfd before the starting process can exit and its id be reused. It may have exited already; then
  // our parent is the process that adopts orphans, and we would wait for that one forever.
  pid_t parent = ::getppid();
  if (words[2] && words[3]) {
    parent = 0;  // matches no process if the argument is not a number
    std::from_chars(words[3], words[3] + std::strlen(words[3]), parent);
  }
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
  if (process < 0 || ::getppid() != parent) return answer("refused the starting program has exited"), 1;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  address->request.set_host(host);
  address->request.set_pid(parent);
  if (words[2]) address->request.set_program(words[2]);
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ends, signal);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  (void)::signal(SIGPIPE, SIG_IGN);
  const int signals = ::signalfd(-1, &ends, SFD_CLOEXEC);
  if (const pid_t child = ::fork(); child != 0)
    return child < 0 ? (answer("refused cannot fork: process limit reached"), 1) : 0;
  try {
    return hold(std::move(*address), process, signals);
  } catch (const std::exception& failure) {
    answer("refused " + printable(failure.what()));
    return 1;
  }
}
