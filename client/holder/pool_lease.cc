// pool-lease: gets GPUs from a pool's scheduler and holds them as long as the process that started it lives. The client library
// (GPUPOOL=pool://...) and pool-run start it; nobody else needs to.
//
// It answers with one line on stdout, "granted FILE" (client/lease/file.h), "refused REASON" or "invalid REASON", and lives on as nobody's child:
// the program's own waits must not see it.
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

#include "client/holder/holder.h"
#include "client/lease/file.h"
#include "client/log.h"
#include "client/run/version.h"
#include "client/settings.h"
#include "protocol/text/printable.h"

namespace {

using namespace gpupool;

constexpr unsigned kFarewellSeconds = 10;  // for the scheduler to take the lease back; it ends by itself otherwise

constexpr const char* kHelp =
    "Usage: pool-lease pool://SCHEDULER:PORT?gpus=2&memory=8GiB&compute=50&... [PROGRAM [PID]]\n"
    "\n"
    "Gets GPUs from a pool's scheduler and holds them as long as the process that started\n"
    "it lives (PID: which one that is). Use pool-run, or GPUPOOL=pool://..., which start it\n"
    "for you.\n"
    "\n"
    "  --version     print the version\n"
    "  --help        print this text\n";

// Any thread. Once it is removed it is not written any more.
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

Result<std::vector<client::LeasedServer>> servers_of(const pool::Granted& granted) {
  std::vector<client::LeasedServer> servers;
  for (const auto& server : granted.servers()) {
    auto endpoint = transport::Endpoint::parse(server.address());
    if (!endpoint) return Error{ErrorCode::malformed, "the node " + server.node() + " has an address that is none: " + endpoint.error().message};
    servers.push_back({std::move(*endpoint), server.token()});
  }
  return servers;
}

// The one line, once.
void answer(const std::string& line) {
  static bool answered = false;
  if (std::exchange(answered, true)) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  std::fclose(stdout);  // who waits for it goes on
}

// Until the process has ended, or a signal asks this one to.
void await_end(int process, int signals) {
  pollfd watched[] = {{process, POLLIN, 0}, {signals, POLLIN, 0}};
  while (::poll(watched, 2, -1) < 0 && errno == EINTR) {
  }
}

int hold(holder::PoolAddress address, int process, int signals) {
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
  holder::Holder holder({.address = std::move(address), .token = settings.token, .tls = settings.tls, .renewed_token = client::token_from_environment}, granted,
                        [](const std::string& line) { client::complain("%s", line.c_str()); });
  std::thread watcher([&] {
    await_end(process, signals);
    file.remove();  // the alarm leaves no time for it
    ::alarm(kFarewellSeconds);
    holder.stop();
  });
  const Result<void> ended = holder.run();
  if (!ended && granted_once) {
    client::complain("%s", ended.error().message.c_str());
    (void)file.write({});  // whoever starts now is told
  }
  if (!granted_once) answer("refused " + printable(ended ? "pool-lease was ended" : ended.error().message));
  if (!granted_once) ::kill(::getpid(), SIGTERM);  // the watcher has nothing to wait for
  watcher.join();
  return ended ? 0 : 1;
}

}  // namespace

int main(int, char** words) {
  const std::string word = words[1] ? words[1] : "--help";
  if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), words[1] ? 0 : 2;
  if (word == "--version") return std::printf("pool-lease %s\n", gpupool::run::kVersion), 0;
  auto address = holder::parse_pool_address(word);
  if (!address) return answer("invalid " + printable(address.error().message)), 2;

  ::syscall(SYS_close_range, 3u, ~0u, 0u);  // what the program has open is not ours to keep
  // Before the one who started it can be gone and its number somebody else's. It may be gone already: then the parent is whoever takes
  // orphans, and would be waited for in vain.
  pid_t parent = ::getppid();
  if (words[2] && words[3]) {
    parent = 0;  // no process's, if the word is no number
    std::from_chars(words[3], words[3] + std::strlen(words[3]), parent);
  }
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
  if (process < 0 || ::getppid() != parent) return answer("refused the program has gone"), 1;
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
  if (const pid_t child = ::fork(); child != 0) return child < 0 ? (answer("refused there are too many processes"), 1) : 0;
  try {
    return hold(std::move(*address), process, signals);
  } catch (const std::exception& failure) {
    answer("refused " + printable(failure.what()));
    return 1;
  }
}
