// Tests signals outside kernels: a program that loads softgpu gets them as it would without softgpu.
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

void nothing(ThreadContext*) {}

int status_of(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// Called first in each test's child process, so that softgpu's signal handlers are installed.
void use_softgpu() {
  auto own = GridExecutor::create(2, nullptr);
  if (run(*own, request(nothing, 1, 1, 0)).fault != FaultKind::none) _exit(98);
}

void default_handlers() {
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, SIG_DFL);
}

sigjmp_buf jump;
volatile int seen_signal, seen_code;
void* volatile seen_address;

int report_pipe;

void remember(int number, siginfo_t* info, void*) {
  seen_signal = number;
  seen_code = info->si_code;
  seen_address = info->si_addr;
  siglongjmp(jump, 1);
}

void old_style(int number) {
  seen_signal = number;
  siglongjmp(jump, 1);
}

}  // namespace

TEST_CASE("without a handler the signal ends the process") {
  CHECK(WTERMSIG(status_of([] {
          default_handlers();
          use_softgpu();
          *reinterpret_cast<volatile int*>(8) = 1;
        })) == SIGSEGV);
  CHECK(WTERMSIG(status_of([] {
          default_handlers();
          use_softgpu();
          raise(SIGSEGV);
        })) == SIGSEGV);
  CHECK(WTERMSIG(status_of([] {
          default_handlers();
          use_softgpu();
          __builtin_trap();
        })) == SIGILL);
  // Invalid accesses of the program itself to device memory are not kernel faults either.
  CHECK(WTERMSIG(status_of([] {
          default_handlers();
          use_softgpu();
          *reinterpret_cast<volatile int*>(*allocate_addresses(4096, 1, 0)) = 1;
        })) == SIGSEGV);
}

TEST_CASE("an earlier signal handler gets signals that are not faults of kernels") {
  const int status = status_of([] {
    struct sigaction action {};
    action.sa_sigaction = remember;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    signal(SIGFPE, old_style);
    use_softgpu();
    for (int round = 0; round < 3; ++round) {
      if (sigsetjmp(jump, 1) == 0) *reinterpret_cast<volatile int*>(uintptr_t{24}) = 1;
      if (seen_signal != SIGSEGV || seen_code != SEGV_MAPERR || seen_address != reinterpret_cast<void*>(24))
        _exit(1);
      seen_signal = 0;
    }
    if (sigsetjmp(jump, 1) == 0) raise(SIGFPE);
    _exit(seen_signal == SIGFPE ? 0 : 2);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

namespace {

// A handler that a program installs after softgpu, as crash reporters do: it reports, restores the previous
// handler and raises the signal again.
struct sigaction found;
void report_and_restore(int number, siginfo_t*, void*) {
  (void)!write(report_pipe, "!", 1);
  sigaction(number, &found, nullptr);
  raise(number);
}
// The invalid store is the test; ThreadSanitizer would report the stores of two grids as a race.
__attribute__((no_sanitize("undefined", "address", "thread"))) void null_kernel(ThreadContext*) {
  *reinterpret_cast<volatile int*>(uintptr_t{16}) = 1;
}

}  // namespace

TEST_CASE("a later signal handler gets its own signals but no faults of kernels") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  report_pipe = ends[1];
  SECTION("one that falls back on the handler it found") {
    CHECK(WTERMSIG(status_of([] {
            default_handlers();
            auto own = GridExecutor::create(2, nullptr);
            struct sigaction action {};
            action.sa_sigaction = report_and_restore;
            action.sa_flags = SA_SIGINFO;
            sigaction(SIGSEGV, &action, &found);
            for (int i = 0; i < 3; ++i) {
              if (run(*own, request(null_kernel, 3, 1, 0)).fault != FaultKind::illegal_address) _exit(1);
            }
            *reinterpret_cast<volatile int*>(uintptr_t{24}) = 1;
          })) == SIGSEGV);
    close(ends[1]);
    char got[8];
    CHECK(read(ends[0], got, sizeof got) == 1);  // once, for the program's own invalid access
  }
  SECTION("one that deals with the signal") {
    const int status = status_of([] {
      auto own = GridExecutor::create(2, nullptr);
      struct sigaction action {};
      action.sa_sigaction = remember;
      action.sa_flags = SA_SIGINFO;
      sigaction(SIGSEGV, &action, nullptr);
      for (int i = 0; i < 3; ++i) {
        if (run(*own, request(null_kernel, 3, 1, 0)).fault != FaultKind::illegal_address) _exit(1);
        seen_signal = 0;
        if (sigsetjmp(jump, 1) == 0) *reinterpret_cast<volatile int*>(uintptr_t{24}) = 1;
        if (seen_signal != SIGSEGV) _exit(2);
      }
      _exit(0);
    });
    close(ends[1]);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  close(ends[0]);
}

TEST_CASE("an ignored signal that was sent stays ignored") {
  const int status = status_of([] {
    signal(SIGFPE, SIG_IGN);
    use_softgpu();
    raise(SIGFPE);
    _exit(0);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
