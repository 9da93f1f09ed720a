#include <dirent.h>
#include <sys/mman.h>

#include "server/softgpu/exec/block_run.h"
#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct FaultParams {
  uint64_t address;
  std::atomic<uint32_t>* after;  // counts threads that continued
};

// An invalid access on purpose: sanitizers must not report it before the processor does.
__attribute__((no_sanitize("undefined", "address", "thread"))) void store(uint64_t address) {
  *reinterpret_cast<volatile uint32_t*>(address) = 1;
}

// Accesses memory as generated code does: with a check first if the address is outside the range.
void access_kernel(ThreadContext* t) {
  auto& p = params<FaultParams>(t);
  if (t->linear_tid == 5) {
    if (!in_range(p.address, 4) || p.address % 4 != 0) softgpu_check_access(t, p.address, 4, 1);
    store(p.address);
  }
  p.after->fetch_add(1);
}

__attribute__((no_sanitize("undefined", "address", "thread"))) uint32_t load(uint64_t address) {
  return *reinterpret_cast<volatile uint32_t*>(address);
}
void load_null_kernel(ThreadContext* t) {
  params<FaultParams>(t).after->fetch_add(load(params<FaultParams>(t).address));
}

void overflow(volatile char* above, int depth) {
  volatile char frame[1024];
  frame[0] = above[0];
  if (depth > 0) overflow(frame, depth - 1);
  above[0] = frame[0];
}
void overflow_kernel(ThreadContext* t) {
  volatile char start[1] = {1};
  overflow(start, 100000);
  params<FaultParams>(t).after->fetch_add(1);
}

void jump_kernel(ThreadContext* t) {
  reinterpret_cast<void (*)()>(params<FaultParams>(t).address)();
  params<FaultParams>(t).after->fetch_add(1);
}

void trap_kernel(ThreadContext* t) {
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  if (t->linear_tid == 7) softgpu_fault(t, FaultKind::trap, 0);
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  params<FaultParams>(t).after->fetch_add(1);
}

void invalid_instruction_kernel(ThreadContext*) {
  __builtin_trap();
}

void fine_kernel(ThreadContext* t) {
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  params<FaultParams>(t).after->fetch_add(1);
}

void shared_overrun_kernel(ThreadContext* t) {
  store(t->block->shared_base + t->block->total_shared_bytes);
}

void assert_kernel(ThreadContext* t) {
  const auto text = [](const char* s) { return reinterpret_cast<uint64_t>(s); };
  auto* strings = reinterpret_cast<char*>(params<FaultParams>(t).address);
  if (t->tid[0] == 2 && t->block->block_idx[0] == 1) {
    softgpu_assertfail(t, text(strings), text(strings + 32), 42, text(strings + 64), 1);
  }
}

// Every third thread of block 1 fails; the others continue to a barrier or, in loops, to their end.
void several_asserts_kernel(ThreadContext* t) {
  const auto text = [](const char* s) { return reinterpret_cast<uint64_t>(s); };
  auto* strings = reinterpret_cast<char*>(params<FaultParams>(t).address);
  if (t->linear_tid % 3 == 2)
    softgpu_assertfail(t, text(strings), text(strings + 32), 7, text(strings + 64), 1);
  params<FaultParams>(t).after->fetch_add(1);
  if (!BlockRun::of(t).in_loops()) softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
}

void spin_for_ever_kernel(ThreadContext* t) {
  if (t->block->block_idx[0] == 0) softgpu_fault(t, FaultKind::trap, 0);
  for (;;) softgpu_yield(t);
}

void check_fine() {
  Buffer<std::atomic<uint32_t>> after(1);
  REQUIRE(run(fine_kernel, 20, 100, FaultParams{0, after.data()}).fault == FaultKind::none);
  REQUIRE(after[0] == 2000);
}

template <ThreadEntry kernel>
GridResult run_both(bool loops, uint32_t blocks, uint32_t threads, FaultParams p) {
  auto r = request(kernel, blocks, threads, p);
  if (loops) r.code.loop_entry = in_loops<kernel>;
  r.static_shared_bytes = 256;
  return run(executor(), std::move(r));
}

size_t mappings() {
  FILE* file = fopen("/proc/self/maps", "r");
  size_t lines = 0;
  for (int c = fgetc(file); c != EOF; c = fgetc(file)) lines += c == '\n';
  fclose(file);
  return lines;
}

}  // namespace

TEST_CASE("an invalid access ends only its grid and reports the address") {
  const bool loops = GENERATE(false, true);
  Buffer<std::atomic<uint32_t>> after(1);
  const auto hole = *allocate_addresses(kGranule, kGranule, 0);
  auto stray = [&](uint64_t address, FaultKind kind) {
    const GridResult result = run_both<access_kernel>(loops, 30, 64, {address, after.data()});
    CHECK(result.fault == kind);
    CHECK(result.address == address);
    CHECK(result.detail.find("test_kernel") != std::string::npos);
    CHECK(result.detail.find("thread (5,0,0)") != std::string::npos);
    check_fine();
  };
  stray(0, FaultKind::illegal_address);
  stray(8, FaultKind::illegal_address);
  stray(reinterpret_cast<uint64_t>(&after), FaultKind::illegal_address);  // the program's own memory
  stray(UINT64_MAX - 3, FaultKind::illegal_address);
  stray(hole, FaultKind::illegal_address);
  stray(hole + kGranule - 4, FaultKind::illegal_address);
  stray(after.address() + 2, FaultKind::misaligned_address);
  stray(kRangeBase + kRangeSize - 2, FaultKind::illegal_address);
  free_addresses(hole, kGranule);
}

TEST_CASE("device memory without access rights faults") {
  Buffer<std::atomic<uint32_t>> after(1);
  auto memory = create_memory(kGranule, nullptr);
  const auto address = *allocate_addresses(kGranule, kGranule, 0);
  REQUIRE(map_memory(memory, 0, address, kGranule, Access::read));
  CHECK(run(load_null_kernel, 1, 32, FaultParams{address, after.data()}).fault == FaultKind::none);
  CHECK(run(access_kernel, 1, 32, FaultParams{address, after.data()}).fault == FaultKind::illegal_address);
  REQUIRE(protect_memory(address, kGranule, true, true));
  CHECK(run(access_kernel, 1, 32, FaultParams{address, after.data()}).fault == FaultKind::none);
  CHECK(*reinterpret_cast<uint32_t*>(address) == 1);
  unmap_memory(address, kGranule);
  CHECK(run(access_kernel, 1, 32, FaultParams{address, after.data()}).fault == FaultKind::illegal_address);
  free_addresses(address, kGranule);
}

TEST_CASE("registered host memory is accessible until it is unregistered") {
  Buffer<std::atomic<uint32_t>> after(1);
  auto word = std::make_unique<uint32_t[]>(4);
  const auto address = reinterpret_cast<uint64_t>(word.get());
  REQUIRE(register_host(address, 16, false));
  CHECK(run(access_kernel, 1, 32, FaultParams{address + 4, after.data()}).fault == FaultKind::none);
  CHECK(word[1] == 1);
  CHECK(run(access_kernel, 1, 32, FaultParams{address + 14, after.data()}).fault ==
        FaultKind::illegal_address);
  REQUIRE(unregister_host(address));
  CHECK(run(access_kernel, 1, 32, FaultParams{address + 4, after.data()}).fault ==
        FaultKind::illegal_address);
  REQUIRE(register_host(address, 16, true));
  CHECK(run(access_kernel, 1, 32, FaultParams{address + 4, after.data()}).fault ==
        FaultKind::illegal_address);
  unregister_host(address);
}

TEST_CASE("reports an unchecked null access or a bad jump or an invalid instruction as a fault") {
  const bool loops = GENERATE(false, true);
  Buffer<std::atomic<uint32_t>> after(1);
  CHECK(run_both<load_null_kernel>(loops, 3, 3, {0, after.data()}).fault == FaultKind::illegal_address);
  CHECK(run_both<jump_kernel>(loops, 3, 3, {0x1234, after.data()}).fault == FaultKind::invalid_pc);
  CHECK(run_both<invalid_instruction_kernel>(loops, 3, 3, {}).fault == FaultKind::illegal_instruction);
  CHECK(after[0] == 0);
  check_fine();
}

TEST_CASE("overrunning the stack or shared memory is a fault") {
  const bool loops = GENERATE(false, true);
  Buffer<std::atomic<uint32_t>> after(1);
  for (int i = 0; i < 5; ++i) {
    const GridResult result = run_both<overflow_kernel>(loops, 3, 3, {0, after.data()});
    CHECK(result.fault == FaultKind::hardware_stack);
    CHECK(result.detail.find("stack overflow") != std::string::npos);
  }
  CHECK(run_both<shared_overrun_kernel>(loops, 2, 2, {}).fault == FaultKind::illegal_address);
  CHECK(after[0] == 0);
  check_fine();
}

TEST_CASE("a trap stops the block at once and the grid's other blocks at the latest at their next wait") {
  Buffer<std::atomic<uint32_t>> after(1);
  const GridResult result = run(trap_kernel, 1, 64, FaultParams{0, after.data()});
  CHECK(result.fault == FaultKind::trap);
  CHECK(after[0] == 0);
  CHECK(result.detail == "kernel test_kernel, block (0,0,0), thread (7,0,0): trap");
  CHECK(run(spin_for_ever_kernel, 5, 4, FaultParams{}).fault == FaultKind::trap);
  check_fine();
}

TEST_CASE("a failed assertion prints the same line as CUDA") {
  Buffer<char> strings(100);
  std::strcpy(strings.data(), "x > 0");
  std::strcpy(strings.data() + 32, "a.cu");
  std::strcpy(strings.data() + 64, "void f(int)");
  take_assert_output();
  const GridResult result = run(assert_kernel, 3, 4, FaultParams{strings.address(), nullptr});
  CHECK(result.fault == FaultKind::assertion);
  const std::string line = "a.cu:42: void f(int): block: [1,0,0], thread: [2,0,0] Assertion `x > 0` failed.";
  CHECK(result.detail == line);
  CHECK(take_assert_output() == line + "\n");
  CHECK(take_assert_output().empty());
  const FaultParams unreadable{64, nullptr};
  CHECK(run(assert_kernel, 3, 4, unreadable).fault == FaultKind::assertion);
  take_assert_output();
}

TEST_CASE("each thread of a block that fails an assertion prints its line") {
  const bool loops = GENERATE(false, true);
  Buffer<char> strings(100);
  std::strcpy(strings.data(), "x > 0");
  std::strcpy(strings.data() + 32, "a.cu");
  std::strcpy(strings.data() + 64, "void f(int)");
  Buffer<std::atomic<uint32_t>> after(1);
  take_assert_output();
  const FaultParams p{strings.address(), after.data()};
  auto r = request(several_asserts_kernel, 1, 1, p);
  if (loops) r.code.loop_entry = in_loops<several_asserts_kernel>;
  r.block_dim[0] = 40;
  r.block_dim[1] = 2;
  const GridResult result = run(executor(), std::move(r));
  CHECK(result.fault == FaultKind::assertion);
  std::string expected;
  for (int tid = 2; tid < 80; tid += 3) {
    expected += "a.cu:7: void f(int): block: [0,0,0], thread: [" + std::to_string(tid % 40) + "," +
                std::to_string(tid / 40) + ",0] Assertion `x > 0` failed.\n";
  }
  CHECK(take_assert_output() == expected);
  CHECK(result.detail + "\n" == expected.substr(0, expected.find('\n') + 1));
  CHECK(after[0] == 54);
  check_fine();
}

TEST_CASE("a thousand faults leak no mappings") {
  Buffer<std::atomic<uint32_t>> after(1);
  auto once = [&] {
    run(overflow_kernel, 2, 3, FaultParams{0, after.data()});
    run(load_null_kernel, 2, 64, FaultParams{0, after.data()});
    run(trap_kernel, 4, 64, FaultParams{0, after.data()});
  };
  for (int i = 0; i < 30; ++i) once();
  const size_t before = mappings();
  for (int i = 0; i < (kRangeSize < (1ull << 40) ? 30 : 300); ++i) once();
  CHECK(mappings() <= before + 8);
}

TEST_CASE("a fault of one grid does not affect concurrent grids") {
  Buffer<std::atomic<uint32_t>> after(1);
  std::vector<std::future<GridResult>> good, bad;
  for (int i = 0; i < 100; ++i) {
    good.push_back(submit(executor(), request(fine_kernel, 5, 40, FaultParams{0, after.data()})));
    bad.push_back(submit(executor(), request(load_null_kernel, 5, 40, FaultParams{0, after.data()})));
  }
  for (auto& result : good) CHECK(result.get().fault == FaultKind::none);
  for (auto& result : bad) CHECK(result.get().fault == FaultKind::illegal_address);
  CHECK(after[0] == 100 * 200);
}
