#include "server/softgpu/exec/faults.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <array>
#include <atomic>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr uint64_t kSignalStackBytes = 256 << 10;  // the sanitizers' handlers need a large stack

void on_signal(int number, siginfo_t* info, void* raw_context);

// The handlers behind ours, oldest first: the handler found at installation, then handlers installed later.
// Modified only while holding `busy`, which is only ever tried, never waited for, since signal handlers take
// it as well.
constexpr size_t kMaxBehind = 8;
struct Chain {
  struct sigaction behind[kMaxBehind];
  size_t count = 0;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};
Chain chains[kSignals.size()];

bool same_handler(const struct sigaction& a, const struct sigaction& b) {
  const bool with_info = (a.sa_flags & SA_SIGINFO) != 0;
  if (with_info != ((b.sa_flags & SA_SIGINFO) != 0)) return false;
  return with_info ? a.sa_sigaction == b.sa_sigaction : a.sa_handler == b.sa_handler;
}

struct sigaction our_action() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  // SA_NODEFER: a handler that ours passes a signal to may leave by siglongjmp, as it could without us.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  return action;
}

bool is_installed(size_t index) {
  struct sigaction now {};
  return sigaction(kSignals[index], nullptr, &now) == 0 && same_handler(now, our_action());
}

bool install_handler(size_t index) {
  Chain& chain = chains[index];
  const struct sigaction ours = our_action();
  struct sigaction now {};
  if (sigaction(kSignals[index], nullptr, &now) != 0) return false;
  if (chain.count > 0 && same_handler(now, ours)) return true;
  if (chain.busy.test_and_set()) return true;
  // Record the handler before ours takes effect: a signal may arrive at once.
  if (chain.count == 0 || !same_handler(now, chain.behind[chain.count - 1])) {
    if (chain.count == kMaxBehind) --chain.count;
    chain.behind[chain.count++] = now;
  }
  const bool ok = sigaction(kSignals[index], &ours, nullptr) == 0;
  chain.busy.clear();
  return ok;
}

size_t index_of(int number) {
  size_t i = 0;
  while (i < kSignals.size() - 1 && kSignals[i] != number) ++i;
  return i;
}

#if defined(__x86_64__)
uint64_t stack_pointer(const ucontext_t& c) {
  return static_cast<uint64_t>(c.uc_mcontext.gregs[REG_RSP]);
}
uint64_t instruction(const ucontext_t& c) {
  return static_cast<uint64_t>(c.uc_mcontext.gregs[REG_RIP]);
}
void go_on_at(ucontext_t& c, const void* where) {
  c.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uint64_t>(where));
}
void call_on_stack(ucontext_t& c, void (*function)(), uint64_t stack) {
  // Align the stack as after a call.
  c.uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>((stack & ~uint64_t{15}) - 8);
  c.uc_mcontext.gregs[REG_EFL] &= ~greg_t{0x400};  // clear the direction flag, as the ABI requires
  go_on_at(c, reinterpret_cast<void*>(function));
}
void reset_float_control() {
  const uint32_t round_to_nearest = 0x1f80;
  asm volatile("ldmxcsr %0" ::"m"(round_to_nearest));
}
#elif defined(__aarch64__)
uint64_t stack_pointer(const ucontext_t& c) {
  return c.uc_mcontext.sp;
}
uint64_t instruction(const ucontext_t& c) {
  return c.uc_mcontext.pc;
}
void go_on_at(ucontext_t& c, const void* where) {
  c.uc_mcontext.pc = reinterpret_cast<uint64_t>(where);
}
void call_on_stack(ucontext_t& c, void (*function)(), uint64_t stack) {
  c.uc_mcontext.sp = stack & ~uint64_t{15};
  go_on_at(c, reinterpret_cast<void*>(function));
}
void reset_float_control() {}
#endif

// A faulting kernel continues here, on the pool thread's own stack, below the frames that run() left there.
[[noreturn]] SOFTGPU_LEAVES_STACK void resume_on_pool_stack() {
  reset_float_control();
  BlockRun* block = running_block();
  leave_stack(block->running_fiber(), block->pool_stack());
}

FaultKind kind_of(int number, const siginfo_t& info, const ucontext_t& context, const BlockRun& block) {
  const auto address = reinterpret_cast<uint64_t>(info.si_addr);
  switch (number) {
    case SIGSEGV:
    case SIGBUS:
      if (FiberPool::in_guard(block.running_fiber(), address)) return FaultKind::hardware_stack;
      if (address == instruction(context)) return FaultKind::invalid_pc;
      if (number == SIGBUS && info.si_code == BUS_ADRALN) return FaultKind::misaligned_address;
      return FaultKind::illegal_address;
    default: return FaultKind::illegal_instruction;
  }
}

void call_handler(const struct sigaction& action, int number, siginfo_t* info, void* context) {
  sigset_t before;
  sigset_t mask = action.sa_mask;
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, number);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(number, info, context);
  } else {
    action.sa_handler(number);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void pass_on(int number, siginfo_t* info, void* context) {
  Chain& chain = chains[index_of(number)];
  const bool mine = !chain.busy.test_and_set();
  const struct sigaction action = chain.behind[chain.count - 1];
  const bool installed_later = chain.count > 1;
  if (installed_later && mine) {
    // The newer handler may restore the handler that it found, which is ours. Reinstall the newer one and
    // drop it from the chain, so that the next signal goes to the handler before it.
    --chain.count;
    sigaction(number, &action, nullptr);
  }
  if (mine) chain.busy.clear();

  const bool plain = (action.sa_flags & SA_SIGINFO) == 0;
  if (!plain || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)) {
    call_handler(action, number, info, context);
    struct sigaction now {};
    if (installed_later && mine && sigaction(number, nullptr, &now) == 0 && same_handler(now, action)) {
      install_handler(index_of(number));  // the newer handler dealt with the signal
    }
    return;
  }
  const bool sent = info->si_code <= 0;  // sent by kill() or similar, not raised by an instruction
  if (sent && action.sa_handler == SIG_IGN) return;
  // The default action ends the process. A signal raised by an instruction is raised again when the handler
  // returns; a sent signal has to be raised again and stays pending until then.
  struct sigaction end {};
  end.sa_handler = SIG_DFL;
  sigaction(number, &end, nullptr);
  if (sent) raise(number);
}

void on_signal(int number, siginfo_t* info, void* raw_context) {
  auto& context = *static_cast<ucontext_t*>(raw_context);
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  const bool by_instruction = info->si_code > 0;
  const bool by_access = by_instruction && (number == SIGSEGV || number == SIGBUS);
  if (by_access && wait_for_move(address)) return;
  if (by_access && instruction(context) >= reinterpret_cast<uint64_t>(softgpu_copy_begin) &&
      instruction(context) < reinterpret_cast<uint64_t>(softgpu_copy_end)) {
    go_on_at(context, softgpu_copy_failed);
    return;
  }
  BlockRun* block = running_block();
  if (!by_instruction || block == nullptr || !in_range(stack_pointer(context), 1)) {
    pass_on(number, info, raw_context);
    return;
  }
  block->set_fault(kind_of(number, *info, context, *block),
                   number == SIGSEGV || number == SIGBUS ? address : 0);
  call_on_stack(context, resume_on_pool_stack, reinterpret_cast<uint64_t>(block->pool_stack().saved) - 512);
}

}  // namespace

bool install_fault_handlers() {
  static const bool installed = [] {
    bool ok = true;
    for (size_t i = 0; i < kSignals.size(); ++i) ok = install_handler(i) && ok;
    return ok;
  }();
  return installed;
}

void reinstall_fault_handlers() {
  // A program that replaces any of the handlers is assumed to replace SIGSEGV's as well.
  if (is_installed(0)) return;
  for (size_t i = 0; i < kSignals.size(); ++i) install_handler(i);
}

SignalStack::SignalStack() {
  const auto memory = allocate_host(kSignalStackBytes, page_bytes());
  if (!memory) return;
  address_ = *memory;
  stack_t stack{};
  stack.ss_sp = reinterpret_cast<void*>(address_);
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
}

SignalStack::~SignalStack() {
  if (address_ == 0) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  free_host(address_, kSignalStackBytes);
}

}  // namespace gpupool::softgpu
