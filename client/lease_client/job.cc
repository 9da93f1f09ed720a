#include "client/lease_client/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "client/lease/file.h"
#include "client/process/log.h"
#include "client/run/environment.h"
#include "common/token/token.h"

namespace gpupool::lease_client {
namespace {

constexpr size_t kRequestIdBytes = 16;
// Inotify reports nothing if its limits are reached or another kernel changes the folder.
constexpr int kLookAgainMs = 1000;
constexpr uint32_t kEnds = IN_MOVE_SELF | IN_DELETE_SELF;
constexpr std::string_view kGranted = "granted ", kRefused = "refused ", kInvalid = "invalid ";
constexpr std::string_view kHead = "gpupool: ";  // of each line of the log

int watch(const std::string& folder, uint32_t changes) {
  const int inotify = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (inotify >= 0 && ::inotify_add_watch(inotify, folder.c_str(), changes | IN_ONLYDIR) >= 0) return inotify;
  if (inotify >= 0) ::close(inotify);
  return -1;
}

std::optional<std::string> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// True while the pool-lease that writes this answer lives.
bool is_held(const std::string& answer) {
  const int file = ::open(answer.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

// Returns the last line of the log, without "gpupool: "; empty if there is none.
std::string last_line(const std::string& log) {
  const std::string text = contents(log).value_or("");
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t before = text.rfind('\n', end);
  std::string line = text.substr(before == std::string::npos ? 0 : before + 1);
  line.resize(line.find_last_not_of('\n') + 1);
  return line.starts_with(kHead) ? line.substr(kHead.size()) : line;
}

// Copies the lines of the log from `shown` on to stderr.
void show_log(const std::string& log, size_t& shown) {
  const std::string text = contents(log).value_or("");
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end < shown) return;
  (void)std::fwrite(text.data() + shown, 1, end + 1 - shown, stderr);
  shown = end + 1;
}

// Returns the value that a program gets; empty: it keeps what it has.
std::optional<std::string> value_of(const run::Variable& variable) {
  const char* const old = std::getenv(variable.name.c_str());
  if (old == nullptr || *old == '\0') return variable.value;
  switch (variable.mode) {
    case run::Variable::Mode::replace: return variable.value;
    case run::Variable::Mode::keep_existing: return std::nullopt;
    case run::Variable::Mode::prepend: break;
  }
  // A step that a job's script starts has inherited the script's variables.
  if (std::string(old) == variable.value || std::string(old).starts_with(variable.value + ":"))
    return std::nullopt;
  return variable.value + ":" + old;
}

int fail(const std::string& why) {
  client::log_error("%s", why.c_str());
  return 1;
}

int print_environment(const std::string& folder) {
  const auto installation = run::find_installation();
  if (!installation) return fail(installation.error().message);
  run::EnvironmentOptions options;
  options.server = std::string(client::kLeaseScheme) + folder + "/" + kJobServers;
  const auto variables = run::program_environment(*installation, options);
  if (!variables) return fail(variables.error().message);
  for (const run::Variable& variable : *variables) {
    if (const auto value = value_of(variable))
      std::printf("%s=%s%c", variable.name.c_str(), value->c_str(), '\0');
  }
  return std::fflush(stdout) == 0 ? 0 : fail("cannot print the job's environment");
}

}  // namespace

std::string request_id_of(const std::string& text) {
  const TokenHash hash = hash_token(text);
  return {hash.begin(), hash.begin() + kRequestIdBytes};
}

JobFolder::JobFolder(std::string path, int folder)
    : path_(std::move(path)), folder_(folder), changes_(watch(path_, kEnds)) {}

JobFolder::JobFolder(JobFolder&& other) noexcept
    : path_(std::move(other.path_)),
      folder_(std::exchange(other.folder_, -1)),
      changes_(std::exchange(other.changes_, -1)) {}

JobFolder::~JobFolder() {
  if (folder_ >= 0) ::close(folder_);
  if (changes_ >= 0) ::close(changes_);
}

Result<JobFolder> JobFolder::open(const std::string& path) {
  const int folder = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) {
    return Error{ErrorCode::unavailable,
                 "the job's folder " + path + " cannot be opened: " + std::generic_category().message(errno)};
  }
  return JobFolder(path, folder);
}

bool JobFolder::exists() const {
  struct stat opened {
  }, named{};
  return ::fstat(folder_, &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

void JobFolder::await_end(int signals) const {
  pollfd watched[] = {{signals, POLLIN, 0}, {changes_, POLLIN, 0}};
  while (exists()) {
    const int ready = ::poll(watched, 2, kLookAgainMs);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) return;
  }
}

int await_job_lease(const std::string& folder) {
  const std::string answer = folder + "/" + kJobAnswer, log = folder + "/" + kJobLog;
  const int changes = watch(folder, kEnds | IN_MODIFY | IN_CLOSE_WRITE);
  size_t shown = 0;
  while (true) {
    const bool held = is_held(answer);  // before the answer is read, which is written before the lock ends
    const auto text = contents(answer);
    if (!text) return fail("the job's lease cannot be read at " + folder + "; has the job ended?");
    if (const size_t end = text->find('\n'); end != std::string::npos) {
      const std::string line = text->substr(0, end);
      if (line.starts_with(kGranted) && held) return print_environment(folder);
      if (line.starts_with(kRefused)) return fail(line.substr(kRefused.size()));
      if (line.starts_with(kInvalid)) return fail(line.substr(kInvalid.size()));
    }
    if (!held) {
      const std::string why = last_line(log);
      return fail("this job's lease is lost: " +
                  (why.empty() ? "pool-lease was killed on this machine" : why));
    }
    show_log(log, shown);
    pollfd watched{changes, POLLIN, 0};
    ::poll(&watched, 1, kLookAgainMs);
    char events[4096];
    while (changes >= 0 && ::read(changes, events, sizeof events) > 0) {
    }
  }
}

}  // namespace gpupool::lease_client
