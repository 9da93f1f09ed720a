#include "server/poold/upgrade/successor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/blocked_signals.h"
#include "common/files/exposure.h"
#include "common/spawn.h"
#include "common/text/printable.h"
#include "common/version.h"
#include "server/handover/handover.h"

namespace gpupool::server {
namespace {

// "DESCRIPTOR:PID" of the socket and of the process that sends, and ":check" for a check.
constexpr const char* kVariable = "GPUPOOL_POOLD_STATE";
constexpr size_t kMostStateBytes = size_t{1} << 30;
constexpr std::chrono::seconds kCheckTime{30};
constexpr size_t kMostOutput = 2048;

Error failed(const std::string& what, int error) {
  return {ErrorCode::unavailable, "cannot " + what + ": " + std::generic_category().message(error)};
}

struct Sender {
  int socket = -1;
  pid_t pid = -1;
};

// Runs in the child of a multithreaded process: system calls only.
[[noreturn]] void send_and_exit(int socket, const char* bytes, size_t count) {
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (socket > 0) ::syscall(SYS_close_range, 0, socket - 1, 0);
  ::syscall(SYS_close_range, socket + 1, ~0u, 0);
  while (count > 0) {
    const long sent = ::syscall(SYS_sendto, socket, bytes, count, MSG_NOSIGNAL, nullptr, 0);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) break;
    bytes += sent;
    count -= static_cast<size_t>(sent);
  }
  ::syscall(SYS_exit_group, 0);
  __builtin_unreachable();
}

// Signals are blocked.
Result<Sender> start_sender(const std::string& bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failed("make a socket pair", errno);
  const pid_t child = ::_Fork();
  if (child == 0) send_and_exit(ends[1], bytes.data(), bytes.size());
  const int error = errno;
  ::close(ends[1]);
  if (child > 0) return Sender{ends[0], child};
  ::close(ends[0]);
  return failed("start a process", error);
}

void stop(const Sender& sender) {
  ::close(sender.socket);
  ::kill(sender.pid, SIGKILL);
  ::waitpid(sender.pid, nullptr, 0);
}

void keep_on_exec(int descriptor, bool keep) {
  ::fcntl(descriptor, F_SETFD, keep ? 0 : FD_CLOEXEC);
}

template <class F>
void for_each_descriptor(const upgrade::State& state, F&& visit) {
  for (const upgrade::Listener& listener : state.listeners()) visit(listener.descriptor());
  if (state.has_admin_socket()) {
    visit(state.admin_socket().lock());
    visit(state.admin_socket().socket());
  }
  for (const upgrade::Image& image : state.pool().images()) visit(image.descriptor());
  for (const upgrade::Session& session : state.pool().sessions()) {
    visit(session.control());
    visit(session.output());
    visit(session.page());
    visit(session.account());
    if (session.client().process() >= 0) visit(session.client().process());
    if (session.has_deposit()) visit(session.deposit().file());
  }
  for (const upgrade::SuspendedSession& session : state.pool().suspended()) {
    for (const int descriptor : {session.file().memory(), session.socket()})
      if (descriptor >= 0) visit(descriptor);
  }
}

std::vector<char*> words_of(const std::vector<std::string>& texts) {
  std::vector<char*> words;
  for (const std::string& word : texts) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  return words;
}

// This process's environment, and the variable.
std::vector<std::string> environment_with(const std::string& value) {
  std::vector<std::string> variables;
  for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
  variables.push_back(std::string(kVariable) + "=" + value);
  return variables;
}

Result<std::string> read_all(int socket) {
  std::string bytes;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(socket, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read the state of the previous program", errno);
    if (got == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(got));
    if (bytes.size() > kMostStateBytes) return Error{ErrorCode::malformed, "the state is too large"};
  }
}

// Whoever can write the program, or replace it in its folder, would have it executed as poold's user, which
// may be root.
Result<void> check_writers(const std::filesystem::path& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return failed("read the mode of " + path.string(), errno);
  if (about.st_uid != 0 && about.st_uid != ::geteuid())
    return Error{ErrorCode::refused, "refusing to execute what another user can replace: '" + path.string() +
                                         "' must belong to root or to poold's user"};
  return files::check_not_writable(path);
}

Result<void> check_program(const std::string& called) {
  std::error_code status;
  const std::filesystem::path path = std::filesystem::absolute(called, status),
                              file = std::filesystem::canonical(called, status);
  if (status) return {};  // the attempt to execute it says why
  for (const auto& one : {file, file.parent_path(), path.parent_path()}) {
    if (auto checked = check_writers(one); !checked) return checked;
  }
  return {};
}

Result<void> check(const upgrade::State& state) {
  const std::string from = "the running poold (version " + printable(state.version()) + ")";
  if (state.format() > kStateFormat)
    return Error{ErrorCode::malformed, from + " has a state of format " + std::to_string(state.format()) +
                                           ", and version " + kVersion + " reads up to " +
                                           std::to_string(kStateFormat)};
  for (const upgrade::Session& session : state.pool().sessions()) {
    if (session.control_version() >= kOldestControlVersion && session.control_version() <= kControlVersion)
      continue;
    return Error{ErrorCode::malformed, "session " + std::to_string(session.number()) +
                                           " was started by version " + printable(session.version()) +
                                           ", whose workers version " + kVersion +
                                           " cannot take over; migrate the session or let it end first"};
  }
  return {};
}

}  // namespace

uint32_t format_needed(const upgrade::State& state) {
  return state.pool().suspended().empty() ? 1 : kStateFormat;
}

Result<Program> installed_program(std::vector<std::string> arguments) {
  std::error_code status;
  // As poold was called, because a symbolic link on the way may lead to another version now.
  if (!arguments.empty() && arguments[0].find('/') != std::string::npos &&
      std::filesystem::is_regular_file(arguments[0], status)) {
    std::string called = arguments[0];
    return Program{std::move(called), std::move(arguments)};
  }
  std::string path = std::filesystem::read_symlink("/proc/self/exe", status).string();
  if (status) return Error{ErrorCode::unavailable, "cannot read /proc/self/exe: " + status.message()};
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted) && !std::filesystem::exists(path, status))
    path.resize(path.size() - kDeleted.size());
  return Program{std::move(path), std::move(arguments)};
}

Error execute(const Program& program, const upgrade::State& state) {
  // SIGTERM would end the new program before it handles it, and with it all sessions.
  const BlockedSignals blocked;
  const std::string bytes = state.SerializeAsString();
  if (upgrade::State copy; !copy.ParseFromString(bytes))
    return {ErrorCode::malformed, "the state cannot be read back"};
  const auto sender = start_sender(bytes);
  if (!sender) return sender.error();
  keep_on_exec(sender->socket, true);
  for_each_descriptor(state, [](int descriptor) { keep_on_exec(descriptor, true); });
  const auto environment =
      environment_with(std::to_string(sender->socket) + ":" + std::to_string(sender->pid));
  ::execve(program.path.c_str(), words_of(program.arguments).data(), words_of(environment).data());
  const int error = errno;
  close_on_exec(state);
  stop(*sender);
  return failed("execute " + program.path, error);
}

bool has_previous_program() {
  return ::getenv(kVariable) != nullptr;
}

Result<std::optional<PreviousProgram>> receive_state() {
  const char* const variable = ::getenv(kVariable);
  if (variable == nullptr) return std::optional<PreviousProgram>();
  const std::string text = variable;
  ::unsetenv(kVariable);  // NOLINT(concurrency-mt-unsafe): the process has one thread yet
  Sender sender;
  const char* const end = text.data() + text.size();
  const auto socket = std::from_chars(text.data(), end, sender.socket);
  const bool named = socket.ptr != end && *socket.ptr == ':';
  const auto pid = named ? std::from_chars(socket.ptr + 1, end, sender.pid) : socket;
  if (!named || socket.ec != std::errc() || pid.ec != std::errc() || sender.socket < 0 || sender.pid <= 0)
    return Error{ErrorCode::malformed, std::string(kVariable) + " is for poold's own use"};
  keep_on_exec(sender.socket, false);
  PreviousProgram previous{.state = {}, .only_check = std::string_view(pid.ptr, end) == ":check"};
  const auto bytes = read_all(sender.socket);
  ::close(sender.socket);
  // A check's sender is not this process's child.
  if (!previous.only_check) ::waitpid(sender.pid, nullptr, 0);
  if (!bytes) return bytes.error();
  if (!previous.state.ParseFromString(*bytes) || previous.state.format() == 0)
    return Error{ErrorCode::malformed, "the running poold has sent a state that is not complete"};
  if (const auto checked = check(previous.state); !checked) return checked.error();
  return std::optional(std::move(previous));
}

void close_on_exec(const upgrade::State& state) {
  for_each_descriptor(state, [](int descriptor) { keep_on_exec(descriptor, false); });
}

void unblock_signals() {
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

void CheckedProgram::start(asio::io_context& context, const Program& program, const upgrade::State& state,
                           Checked checked) {
  const std::shared_ptr<CheckedProgram> self(new CheckedProgram(context, std::move(checked)));
  const auto fail = [&](Error error) {
    asio::post(context, [self, error = std::move(error)] { self->checked_(error); });
  };
  if (const auto good = check_program(program.path); !good) return fail(good.error());
  const BlockedSignals blocked;
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return fail(failed("make a pipe", errno));
  self->output_.assign(output[0]);
  const auto sender = start_sender(state.SerializeAsString());
  if (!sender) return ::close(output[1]), fail(sender.error());
  self->sender_ = sender->pid;

  Spawn child(POSIX_SPAWN_SETPGROUP);
  constexpr int kSocket = 3;
  for (const int number : {STDOUT_FILENO, STDERR_FILENO}) child.give(output[1], number);
  child.give(sender->socket, kSocket);
  const auto environment =
      environment_with(std::to_string(kSocket) + ":" + std::to_string(sender->pid) + ":check");
  const int error = child.start(program.path.c_str(), words_of(program.arguments).data(), self->pid_,
                                words_of(environment).data());
  ::close(output[1]);
  ::close(sender->socket);  // the child has its own: when that closes, the sender's writes fail and it exits
  const int pidfd = error == 0 ? static_cast<int>(::syscall(SYS_pidfd_open, self->pid_, 0)) : -1;
  if (pidfd < 0) {
    const int why = error != 0 ? error : errno;
    if (error == 0) ::kill(self->pid_, SIGKILL), ::waitpid(self->pid_, nullptr, 0);
    ::waitpid(sender->pid, nullptr, 0);
    return fail(failed("start " + program.path, why));
  }
  self->ended_.assign(pidfd);
  self->await_end();
}

void CheckedProgram::await_end() {
  timeout_.expires_after(kCheckTime);
  timeout_.async_wait([self = shared_from_this()](const asio::error_code& status) {
    if (!status) ::kill(-self->pid_, SIGKILL);
  });
  ended_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const asio::error_code&) { self->finish(); });
}

void CheckedProgram::finish() {
  timeout_.cancel();
  int wait_status = 0;
  ::waitpid(pid_, &wait_status, 0);
  ::kill(-pid_, SIGKILL);  // what it has started
  ::kill(sender_, SIGKILL);
  ::waitpid(sender_, nullptr, 0);
  std::string said(kMostOutput, '\0');
  output_.non_blocking(true);
  const ssize_t got = ::read(output_.native_handle(), said.data(), said.size());
  said.resize(got > 0 ? static_cast<size_t>(got) : 0);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
    return checked_(printable(said.substr(said.rfind('\n') + 1)));  // warnings may come before
  said = printable(said);
  const std::string how = WIFSIGNALED(wait_status)
                              ? "it was killed by signal " + std::to_string(WTERMSIG(wait_status))
                              : "it ended with status " + std::to_string(WEXITSTATUS(wait_status));
  checked_(Error{ErrorCode::refused, "the installed poold cannot take over: " + (said.empty() ? how : said)});
}

}  // namespace gpupool::server
