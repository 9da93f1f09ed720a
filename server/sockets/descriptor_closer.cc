#include "server/sockets/descriptor_closer.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/blocked_signals.h"
#include "common/log/log.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

constexpr std::chrono::seconds kWorthAWarning{5};

DescriptorCloser* g_closer = nullptr;

std::atomic<uint32_t>* shared_word() {
  void* const page = ::mmap(nullptr, sizeof(std::atomic<uint32_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  return new (page) std::atomic<uint32_t>(0);
}

// Runs in the child of a multithreaded process: system calls only. `held` is sorted. Closes all other
// descriptors, so that no connection stays open because of this process.
[[noreturn]] void hold_until_closed(std::span<const int> held, std::atomic<uint32_t>* closed, uint32_t before,
                                    pid_t parent) {
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  unsigned next = 0;
  for (const int descriptor : held) {
    const auto number = static_cast<unsigned>(descriptor);
    if (number > next) ::syscall(SYS_close_range, next, number - 1, 0);
    next = number + 1;
  }
  ::syscall(SYS_close_range, next, ~0u, 0);
  while (closed->load() == before && ::syscall(SYS_getppid) == parent) {
    ::syscall(SYS_futex, closed, FUTEX_WAIT, before, nullptr, nullptr, 0);
  }
  ::syscall(SYS_exit_group, 0);
  __builtin_unreachable();
}

constexpr size_t kMostDrained = 1 << 20;  // a Unix socket keeps some hundred KiB

// Reads and discards all data. Returns false if descriptors are among it or there is too much. After
// shutdown() nothing more arrives.
bool drained(int socket) {
  std::byte buffer[4096];
  for (size_t count = 0; count < kMostDrained;) {
    const auto got = receive_bytes(socket, buffer);
    if (!got) return got.error().code != ErrorCode::malformed;
    count += *got;
  }
  return false;
}

bool is_unix(int socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

}  // namespace

DescriptorCloser::DescriptorCloser(asio::io_context& context) : timer_(context), closed_(shared_word()) {
  g_closer = this;
}

DescriptorCloser::~DescriptorCloser() {
  g_closer = nullptr;
  ::munmap(closed_, sizeof *closed_);
}

void DescriptorCloser::close(int descriptor) {
  (is_unix(descriptor) ? unix_ : others_).waiting.push_back(descriptor);
  if (!scheduled_) schedule(std::chrono::milliseconds(0));
}

void DescriptorCloser::then(std::function<void()> done) {
  if (nothing_waits()) return done();
  done_.push_back(std::move(done));
}

void DescriptorCloser::schedule(std::chrono::milliseconds pause) {
  scheduled_ = true;
  timer_.expires_after(pause);
  timer_.async_wait([this](const asio::error_code& status) {
    if (!status) tend();
  });
}

void DescriptorCloser::tend() {
  tend(others_);
  tend(unix_);
  scheduled_ = false;
  if (!nothing_waits() || helpers() != 0) schedule(kPause);
  if (!nothing_waits()) return;
  for (const auto& done : std::exchange(done_, {})) done();
}

void DescriptorCloser::tend(Lane& lane) {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(lane.helpers,
                [](const Helper& helper) { return ::waitpid(helper.pid, nullptr, WNOHANG) != 0; });
  if (lane.helpers.empty())
    lane.warned = false;
  else if (now - lane.helpers.front().since > kWorthAWarning && !std::exchange(lane.warned, true)) {
    log::warning("descriptors_not_closed", {{"processes", lane.helpers.size()},
                                            {"reason",
                                             "close() blocks on a descriptor that a client or worker sent, "
                                             "such as a file of an unresponsive FUSE file "
                                             "system; only these child processes wait for it"}});
  }
  if (lane.waiting.empty()) return;
  if (lane.helpers.size() < kMostHelpers || now - lane.helpers.back().since >= kPauseBeyond)
    start_helper(lane);
}

// Does nothing if no process can be forked now.
void DescriptorCloser::start_helper(Lane& lane) {
  std::sort(lane.waiting.begin(), lane.waiting.end());
  const uint32_t before = closed_->load();
  const pid_t parent = ::getpid();
  pid_t child;
  {
    const BlockedSignals blocked;  // their handlers write to descriptors that the child shares
    child = ::_Fork();
    if (child == 0) hold_until_closed(lane.waiting, closed_, before, parent);
  }
  if (child < 0) return;
  for (const int descriptor : std::exchange(lane.waiting, {})) ::close(descriptor);
  closed_->fetch_add(1);
  ::syscall(SYS_futex, closed_, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  lane.helpers.push_back({child, std::chrono::steady_clock::now()});
}

void close_without_blocking(int descriptor) {
  if (descriptor < 0) return;
  if (g_closer != nullptr)
    g_closer->close(descriptor);
  else
    ::close(descriptor);
}

void after_closing(std::function<void()> done) {
  if (g_closer != nullptr)
    g_closer->then(std::move(done));
  else
    done();
}

void close_connection(int socket) {
  if (!is_unix(socket)) {
    ::close(socket);
    return;
  }
  ::shutdown(socket, SHUT_RDWR);
  if (drained(socket))
    ::close(socket);
  else
    close_without_blocking(socket);
}

}  // namespace gpupool::server
