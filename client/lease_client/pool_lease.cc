// pool-lease: acquires GPUs from a pool's scheduler and holds them while the process that started it lives.
// Started by the client library (GPUPOOL=pool://...) and by pool-run; by client/slurm/ with the options for
// jobs of a batch system (client/lease_client/job.h).
//
// Prints one line on stdout, "granted FILE" (client/lease/file.h), "refused REASON" or "invalid REASON". It
// detaches from its parent, so that the program's own wait() calls do not see it.
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "client/lease/file.h"
#include "client/lease_client/job.h"
#include "client/lease_client/lease_client.h"
#include "client/lease_client/servers.h"
#include "client/process/log.h"
#include "client/process/settings.h"
#include "common/text/printable.h"
#include "common/version.h"

namespace {

using namespace gpupool;

// Time for the scheduler to acknowledge; otherwise the lease expires.
constexpr unsigned kReturnSeconds = 10;
// How long --check tries to reach a scheduler; somebody waits for it.
constexpr std::chrono::milliseconds kCheckPatience{5'000};
// How long a job waits for a scheduler. Otherwise a batch system's queue would run empty, job after job
// failing, while the scheduler is down.
constexpr std::chrono::minutes kJobPatience{10};

constexpr const char* kHelp =
    "Usage: pool-lease pool://SCHEDULER:PORT?gpus=2&memory=8GiB&compute=50&... [PROGRAM [PID]]\n"
    "       pool-lease --check ADDRESS\n"
    "       pool-lease --hold FOLDER ADDRESS [PROGRAM]\n"
    "       pool-lease --await FOLDER\n"
    "\n"
    "Acquires GPUs from a pool's scheduler and holds them while the process that started it\n"
    "(PID) lives. pool-run and GPUPOOL=pool://... start it; it is not meant to be run by\n"
    "hand.\n"
    "\n"
    "  --check       ask whether the request can ever be granted, and take nothing. Exit\n"
    "                status: 0 it can, 1 refused, 2 wrong address, 3 no scheduler answers\n"
    "  --hold        hold the lease as long as FOLDER exists, for a job of a batch system\n"
    "  --await       wait for the lease of FOLDER, and print its environment\n"
    "  --version     print the version\n"
    "  --help        print this text\n";

// The lease file. Thread-safe; after remove() it is not written any more.
class LeaseFile {
 public:
  explicit LeaseFile(std::string path = "") : path_(std::move(path)) {}
  ~LeaseFile() { remove(); }
  // Makes a folder for the file.
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
  // Leaves the file as it is.
  void keep() {
    const std::lock_guard lock(mutex_);
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

// Holds the lease, written to `file`, until `await_end` returns, which SIGTERM causes. Returns sooner if the
// lease was refused, or, of a batch system's job, has ended. `job`: null for a process.
int hold(pool::PoolAddress address, LeaseFile& file, const lease_client::JobFolder* job,
         const std::function<void()>& await_end) {
  const client::Settings settings = client::settings_from_environment();
  bool granted_once = false;
  const auto granted = [&](const pool::Granted& grant) -> Result<void> {
    const auto servers = lease_client::servers_of(grant);
    if (!servers) return servers.error();
    const auto written = file.write(*servers);
    if (!written && job && !job->exists()) return {};  // the watcher is about to stop the client
    if (!written) return written;
    granted_once = true;
    answer("granted " + file.path());
    return {};
  };
  lease_client::LeaseClient::Settings client_settings{.address = std::move(address),
                                                      .token = settings.token,
                                                      .tls = settings.tls,
                                                      .renewed_token = client::token_from_environment};
  if (job) client_settings.patience = kJobPatience;
  lease_client::LeaseClient client(std::move(client_settings), granted,
                                   [](const std::string& line) { client::log_error("%s", line.c_str()); });
  std::thread watcher([&] {
    await_end();
    file.remove();  // before the alarm, which leaves no time for it
    ::alarm(kReturnSeconds);
    client.stop();
  });
  const Result<void> ended = client.run();
  if (!ended && granted_once) {
    client::log_error("%s", ended.error().message.c_str());
    (void)file.write({});  // programs that start now see that the lease is over
    if (job) file.keep();
  }
  if (!granted_once)
    answer("refused " + printable(ended ? "pool-lease was terminated" : ended.error().message));
  if (!granted_once || (!ended && job)) ::kill(::getpid(), SIGTERM);  // ends the watcher
  watcher.join();
  return ended ? 0 : 1;
}

// Blocks the signals that end this process. Returns a descriptor from which they are read.
int take_signals() {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ends, signal);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  (void)::signal(SIGPIPE, SIG_IGN);
  return ::signalfd(-1, &ends, SFD_CLOEXEC);
}

// Returns the name of the user of this process, or the number if it has no name.
std::string user_name() {
  char text[4096];
  passwd entry{};
  passwd* found = nullptr;
  const uid_t user = ::geteuid();
  if (::getpwuid_r(user, &entry, text, sizeof text, &found) == 0 && found) return found->pw_name;
  return std::to_string(user);
}

void describe_client(pool::Request& request, const char* program, pid_t pid) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  request.set_host(host);
  request.set_pid(pid);
  request.set_user(printable(user_name()));
  if (program != nullptr) request.set_program(program);
}

int check(pool::PoolAddress address) {
  address.request.set_check_only(true);
  describe_client(address.request, nullptr, ::getpid());
  const client::Settings settings = client::settings_from_environment();
  lease_client::LeaseClient client(
      {.address = std::move(address),
       .token = settings.token,
       .tls = settings.tls,
       .patience = kCheckPatience},
      [](const pool::Granted&) { return Result<void>(); }, [](const std::string&) {});
  const Result<void> checked = client.run();
  if (checked) return 0;
  client::log_error("%s", printable(checked.error().message).c_str());
  return checked.error().code == ErrorCode::unavailable ? 3 : 1;
}

// Holds the lease of a job, or follows it.
int hold_for_job(pool::PoolAddress address, const std::string& path, const char* program) {
  // This process is outside of the job's control group and outlives the job's programs, which must not take
  // it over.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  // answer() closes stdout, but the lock of its file must last.
  if (::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) < 0)
    return answer("refused cannot keep the lock of the answer"), 1;
  const char* const id = std::getenv(lease_client::kLeaseIdVariable);
  const char* const follow = std::getenv(lease_client::kLeaseFollowVariable);
  if (id != nullptr) address.request.set_id(lease_client::request_id_of(id));
  address.request.set_follow(follow != nullptr && std::strcmp(follow, "1") == 0);
  describe_client(address.request, program, ::getpid());
  const auto folder = lease_client::JobFolder::open(path);
  if (!folder) return answer("refused " + printable(folder.error().message)), 1;
  const int signals = take_signals();
  LeaseFile file(folder->servers());
  return hold(std::move(address), file, &*folder, [&] { folder->await_end(signals); });
}

// Holds the lease while the process that started this one lives. `words`: PROGRAM and PID, or less.
int hold_for_process(pool::PoolAddress address, char** words) {
  // Get a pidfd before the starting process can exit and its id be reused. It may have exited already; then
  // our parent is the process that adopts orphans, and we would wait for that one forever.
  pid_t parent = ::getppid();
  if (words[0] && words[1]) {
    parent = 0;  // matches no process if the argument is not a number
    std::from_chars(words[1], words[1] + std::strlen(words[1]), parent);
  }
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
  if (process < 0 || ::getppid() != parent) return answer("refused the starting program has exited"), 1;
  describe_client(address.request, words[0], parent);
  const int signals = take_signals();
  if (const pid_t child = ::fork(); child != 0)
    return child < 0 ? (answer("refused cannot fork: process limit reached"), 1) : 0;
  LeaseFile file;
  if (const auto made = file.make(); !made) return answer("refused " + made.error().message), 1;
  return hold(std::move(address), file, nullptr, [&] { await_end(process, signals); });
}

// `words` begins with --check or --hold.
int run_option(const std::string& option, char** words) {
  const bool checks = option == "--check";
  if (words[1] == nullptr || (!checks && words[2] == nullptr)) return std::fputs(kHelp, stderr), 2;
  auto address = pool::parse_pool_address(words[checks ? 1 : 2]);
  if (!address) {
    const std::string why = printable(address.error().message);
    if (checks)
      client::log_error("%s", why.c_str());
    else
      answer("invalid " + why);
    return 2;
  }
  return checks ? check(std::move(*address)) : hold_for_job(std::move(*address), words[1], words[3]);
}

int run(char** words) {
  const std::string word = words[1] ? words[1] : "--help";
  if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), words[1] ? 0 : 2;
  if (word == "--version") return std::printf("pool-lease %s\n", gpupool::kVersion), 0;
  ::syscall(SYS_close_range, 3u, ~0u, 0u);  // close the program's other descriptors
  if (word == "--await" && words[2]) return lease_client::await_job_lease(words[2]);
  if (word == "--check" || word == "--hold") return run_option(word, words + 1);
  auto address = pool::parse_pool_address(word);
  if (!address) return answer("invalid " + printable(address.error().message)), 2;
  return hold_for_process(std::move(*address), words + 2);
}

}  // namespace

int main(int, char** words) {
  try {
    return run(words);
  } catch (const std::exception& failure) {
    answer("refused " + printable(failure.what()));
    return 1;
  }
}
