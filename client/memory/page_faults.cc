#include "client/memory/page_faults.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

namespace gpupool::client::page_faults {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

// A fault to be served. Lives on the stack of the faulting thread, which waits.
struct Request {
  uint64_t address;
  Access access;
  Word answer{0};
  Request* next = nullptr;
};

// A signal handler that was installed before this one; the most recent first. Never freed, because it may be
// running.
struct PreviousHandler {
  struct sigaction action;
  const PreviousHandler* older;
};

// [0]: all other faults, which may wait for a host function; [1]: faults of host functions.
constexpr int kFaultThreads = 2;
constexpr int kHostFunctionThreads =
    2;  // the program's functions; late copies (client/streams/host_function.cc)
constexpr size_t kMostNested = 64;

// Constant-initialised, because the handler may run at any time.
struct State {
  Serve serve = nullptr;
  std::atomic<uint64_t> begin{UINT64_MAX}, end{0};
  std::atomic<const PreviousHandler*> previous{nullptr};
  std::atomic<pid_t> host_functions[kHostFunctionThreads]{};
  std::atomic<bool> forked{false};
  struct FaultThread {
    std::atomic<Request*> requests{nullptr};
    Word bell{0};
    std::atomic<pid_t> thread{0};
  } fault_threads[kFaultThreads];
  // Threads that are inside a previous handler. If that handler calls this one, it must not be called again.
  struct ActiveForward {
    std::atomic<pid_t> thread{0};
    std::atomic<uintptr_t> frame{0};
  } active[kMostNested];
};
constinit State state;

pid_t thread_id() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}
void futex_wait(Word& word, uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake(Word& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Answer request_answer(State::FaultThread& handler, uint64_t address, Access access) {
  Request request{address, access};
  request.next = handler.requests.load(std::memory_order_relaxed);
  while (!handler.requests.compare_exchange_weak(request.next, &request, std::memory_order_release,
                                                 std::memory_order_relaxed)) {
  }
  handler.bell.fetch_add(1);
  futex_wake(handler.bell);
  uint32_t answer = 0;
  while ((answer = request.answer.load(std::memory_order_acquire)) == 0) futex_wait(request.answer, 0);
  return static_cast<Answer>(answer);
}

void run_fault_thread(int number) {
  State::FaultThread& handler = state.fault_threads[number];
  handler.thread = thread_id();
  for (;;) {
    const uint32_t rung = handler.bell.load();
    Request* request = handler.requests.exchange(nullptr, std::memory_order_acquire);
    if (!request) {
      futex_wait(handler.bell, rung);
      continue;
    }
    while (request) {
      Request* const next = request->next;  // read first: the request is gone once it is answered
      const Answer answer = state.serve(request->address, request->access, number == 1);
      request->answer.store(static_cast<uint32_t>(answer), std::memory_order_release);
      futex_wake(request->answer);
      request = next;
    }
  }
}

// Decodes the kind of access. False: an instruction fetch, which cannot be served.
bool describe(const siginfo_t& info, const void* context, Access* access) {
#if defined(__x86_64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  *access = registers[REG_ERR] & 2 ? Access::write : Access::read;
  return (registers[REG_ERR] & 16) == 0;
#elif defined(__aarch64__)
  *access = Access::unknown;
  return static_cast<const ucontext_t*>(context)->uc_mcontext.pc != reinterpret_cast<uintptr_t>(info.si_addr);
#else
  *access = Access::unknown;
  return true;
#endif
}

void set_default(int signal) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
}

void forward_signal(int signal, siginfo_t* info, void* context) {
  // If a previous handler has called this one, pass the signal to the handler before it.
  const pid_t self = thread_id();
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const PreviousHandler* previous = state.previous.load(std::memory_order_acquire);
  State::ActiveForward* mine = nullptr;
  for (auto& active : state.active) {
    if (active.thread.load(std::memory_order_relaxed) == self) {
      if (active.frame.load(std::memory_order_relaxed) > frame)
        previous = previous ? previous->older : nullptr;
      else
        mine = &active;  // that handler was left by longjmp
    }
  }
  for (auto& active : state.active) {
    pid_t no_thread = 0;
    if (mine || !active.thread.compare_exchange_strong(no_thread, self)) continue;
    mine = &active;
    break;
  }
  if (!previous || !mine || previous->action.sa_handler == SIG_DFL ||
      previous->action.sa_handler == SIG_IGN) {
    if (mine) mine->thread = 0;
    set_default(signal);  // the access is retried and ends the program at the fault
    if (info->si_code <= 0) raise(signal);
    return;
  }
  mine->frame = frame;
  const struct sigaction& action = previous->action;
  sigset_t block = action.sa_mask, before;
  if (action.sa_flags & SA_NODEFER) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, signal);
    pthread_sigmask(SIG_UNBLOCK, &own, &before);
    pthread_sigmask(SIG_BLOCK, &block, nullptr);
  } else {
    pthread_sigmask(SIG_BLOCK, &block, &before);
  }
  if (action.sa_flags & static_cast<int>(SA_RESETHAND)) set_default(signal);
  if (action.sa_flags & SA_SIGINFO)
    action.sa_sigaction(signal, info, context);
  else
    action.sa_handler(signal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  mine->thread = 0;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const pid_t self = thread_id();
  const bool watched =
      info->si_code > 0 && address >= state.begin.load(std::memory_order_relaxed) &&
      address < state.end.load(std::memory_order_relaxed) && !state.forked.load(std::memory_order_relaxed) &&
      self != state.fault_threads[0].thread.load() && self != state.fault_threads[1].thread.load();
  Access access = Access::unknown;
  Answer answer = Answer::not_ours;
  if (watched && describe(*info, context, &access)) {
    const bool in_host_function =
        std::any_of(std::begin(state.host_functions), std::end(state.host_functions),
                    [self](const auto& thread) { return thread.load() == self; });
    answer = request_answer(state.fault_threads[in_host_function ? 1 : 0], address, access);
  }
  if (answer == Answer::unavailable) raise(SIGBUS);
  if (answer == Answer::not_ours) forward_signal(signal, info, context);
  errno = error;
}

// Installs the handler unless it is installed already.
void install() {
  struct sigaction now {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault))
    return;
  state.previous.store(new PreviousHandler{now, state.previous.load()}, std::memory_order_release);
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

std::mutex& installing() {
  static std::mutex* const only = new std::mutex;
  return *only;
}

}  // namespace

bool start(Serve serve) {
  const std::lock_guard lock(installing());
  if (state.serve) return true;
  state.serve = serve;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    for (int number = 0; number < kFaultThreads; ++number) std::thread(run_fault_thread, number).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) {
    state.serve = nullptr;
    return false;
  }
  pthread_atfork(nullptr, nullptr, [] { state.forked = true; });
  install();
  return true;
}

void watch(uint64_t begin, uint64_t end) {
  const std::lock_guard lock(installing());
  state.begin = std::min(state.begin.load(), begin);
  state.end = std::max(state.end.load(), end);
}

void reinstall() {
  const std::lock_guard lock(installing());
  install();
}

void mark_host_function_thread() {
  for (auto& thread : state.host_functions) {
    pid_t none = 0;
    if (thread.compare_exchange_strong(none, thread_id())) return;
  }
}

}  // namespace gpupool::client::page_faults
