// Tests pages with two mappings, and page faults that another thread serves.
#include "client/memory/host_pages.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "client/memory/page_faults.h"
#include "tests/support/catch.h"

using namespace gpupool::client;

namespace {

constexpr uint64_t kPages = 64;

// Returns currently unmapped addresses; another thread could map them in the meantime, which is unlikely.
uint64_t free_addresses() {
  const uint64_t size = kPages * HostPages::page();
  void* const there = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(there != MAP_FAILED);
  munmap(there, size);
  return reinterpret_cast<uintptr_t>(there);
}

volatile char* at(uint64_t address) {
  return reinterpret_cast<volatile char*>(static_cast<uintptr_t>(address));
}

// The fault handler of these tests makes the page accessible.
HostPages* pages = nullptr;
uint64_t base = 0;
std::atomic<int> reads{0}, writes{0};
page_faults::Answer serve(uint64_t address, page_faults::Access access, bool) {
  if (address < base || address >= base + kPages * HostPages::page()) return page_faults::Answer::not_ours;
  const uint64_t page = HostPages::down(address);
  if (page == base + 63 * HostPages::page()) return page_faults::Answer::unavailable;
  (access == page_faults::Access::write ? writes : reads).fetch_add(1);
  const bool done =
      pages->protect(page, HostPages::page(),
                     access == page_faults::Access::read ? HostPages::Use::read : HostPages::Use::write);
  return done ? page_faults::Answer::served : page_faults::Answer::unavailable;
}

struct Shown {
  Shown() : owned((base = free_addresses(), HostPages::create(base, kPages * HostPages::page(), false))) {
    REQUIRE(owned);
    pages = owned.get();
    REQUIRE(pages->show(base, kPages * HostPages::page(), HostPages::Use::none));
    REQUIRE(page_faults::start(serve));
    page_faults::reinstall();  // each test case replaces the signal handler
    page_faults::watch(base, base + kPages * HostPages::page());
  }
  std::unique_ptr<HostPages> owned;
};

int status_of(void (*child_body)()) {
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);  // discards the child's output
    dup2(nowhere, 1);
    dup2(nowhere, 2);
    child_body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

sigjmp_buf back;
std::atomic<int> handled{0};
void own_handler(int) {
  ++handled;
  siglongjmp(back, 1);
}
void touch_nothing() {
  if (sigsetjmp(back, 1) == 0) *at(8) = 1;
}

}  // namespace

TEST_CASE("both mappings of a page show the same bytes") {
  const uint64_t page = HostPages::page();
  const uint64_t start = free_addresses();
  const auto made = HostPages::create(start, kPages * page, false);
  REQUIRE(made);
  CHECK(HostPages::create(start, kPages * page, false) == nullptr);  // the addresses are mapped now
  REQUIRE(made->show(start + 2 * page, 4 * page, HostPages::Use::write));
  *at(start + 3 * page + 5) = 'a';
  CHECK(*reinterpret_cast<char*>(made->alias(start + 3 * page + 5)) == 'a');
  std::vector<std::pair<uint64_t, uint64_t>> populated;
  made->for_each_populated(start, start + kPages * page,
                           [&](uint64_t begin, uint64_t end) { populated.emplace_back(begin, end); });
  REQUIRE(populated.size() == 1);
  CHECK((populated[0].first == start + 3 * page && populated[0].second == start + 4 * page));
  made->hide(start + 2 * page, 4 * page);
  populated.clear();
  made->for_each_populated(start, start + kPages * page,
                           [&](uint64_t begin, uint64_t end) { populated.emplace_back(begin, end); });
  CHECK(populated.empty());
}

TEST_CASE("handles page faults on protected memory") {
  const Shown shown;
  reads = writes = 0;
  *reinterpret_cast<char*>(pages->alias(base + 7)) = 'x';
  CHECK(*at(base + 7) == 'x');
  *at(base + HostPages::page()) = 'y';
  CHECK(*reinterpret_cast<char*>(pages->alias(base + HostPages::page())) == 'y');
  *at(base + 7) = 'z';
  CHECK(reads == 1);
  CHECK(writes == 2);
}

TEST_CASE("handles page faults of many threads at once") {
  const Shown shown;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([] {
      for (uint64_t i = 0; i < 60; ++i) *at(base + i * HostPages::page()) = 1;
    });
  }
  for (auto& thread : threads) thread.join();
  for (uint64_t i = 0; i < 60; ++i) CHECK(*at(base + i * HostPages::page()) == 1);
}

TEST_CASE("forwards unrelated faults to the program's handler") {
  const Shown shown;
  handled = 0;
  struct sigaction action {};
  action.sa_handler = own_handler;
  struct sigaction before {};
  REQUIRE(sigaction(SIGSEGV, &action, &before) == 0);
  touch_nothing();
  CHECK(handled == 1);
  page_faults::reinstall();  // as before a launch
  touch_nothing();
  CHECK(handled == 2);
  *at(base + 5 * HostPages::page()) = 1;
  CHECK(handled == 2);
  touch_nothing();
  CHECK(handled == 3);
  sigaction(SIGSEGV, &before, nullptr);
}

TEST_CASE("faults that are not handled end the program as without gpupool") {
  const Shown shown;
  // A foreign address: SIGSEGV. A page that cannot be fetched: SIGBUS. A forked child has no pages.
  const int wild = status_of([] { *at(8) = 1; });
  CHECK((WIFSIGNALED(wild) && WTERMSIG(wild) == SIGSEGV));
  const int sent = status_of([] { kill(getpid(), SIGSEGV); });
  CHECK((WIFSIGNALED(sent) && WTERMSIG(sent) == SIGSEGV));
  const int forked = status_of([] { *at(base) = 1; });
  CHECK((WIFSIGNALED(forked) && WTERMSIG(forked) == SIGSEGV));
  struct sigaction action {
  }, before{};
  action.sa_handler = own_handler;
  REQUIRE(sigaction(SIGBUS, &action, &before) == 0);
  handled = 0;
  if (sigsetjmp(back, 1) == 0) *at(base + 63 * HostPages::page()) = 1;
  CHECK(handled == 1);
  sigaction(SIGBUS, &before, nullptr);
}
