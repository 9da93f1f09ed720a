// What the parts of poold take over from the previous program of their process (server/poold/upgrade).
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>

#include "server/confinement/worker_users.h"
#include "server/poold/workers/gpu_turns.h"
#include "server/quota/accounts.h"
#include "server/sockets/tcp_pair.h"
#include "server/tenants/quota_messages.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

int copy_of(int descriptor) {
  return ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

template <class T>
std::unique_ptr<T> taken(Result<std::unique_ptr<T>> result) {
  REQUIRE(result);
  return std::move(*result);
}

using Page = std::shared_ptr<quota::SharedPage<quota::SessionPage>>;

Page make_page() {
  return *quota::SharedPage<quota::SessionPage>::create("test");
}

quota::TurnWord word_of(const Page& page) {
  return {(*page)->turns[0].load()};
}

}  // namespace

TEST_CASE("an account goes on with its charges and slots") {
  quota::Accounts before;
  const auto first = taken(before.take("a")), second = taken(before.take("a"));
  auto& account = **before.of("a");
  account->sessions[second->slot()].memory_used[0] = 4096;
  const int descriptor = copy_of(second->descriptor());

  quota::Accounts after;
  REQUIRE(after.set("a", {}));  // the configuration has the tenant
  auto restored = taken(after.restore("a", descriptor, second->slot(), true));
  CHECK(restored->slot() == second->slot());
  CHECK((**after.of("a"))->sessions[second->slot()].memory_used[0] == 4096);
  CHECK(!after.restore("a", descriptor, second->slot(), true));  // it is in use
  CHECK(!after.restore("a", descriptor, quota::kMaxSessionsPerTenant, true));
  const auto other = taken(after.restore("a", descriptor, first->slot(), true));
  after.end_restoring();
  CHECK(taken(after.take("a"))->slot() == 2);
  restored.reset();
  CHECK((**after.of("a"))->sessions[second->slot()].memory_used[0] == 0);
}

TEST_CASE("what is no account is refused") {
  quota::Accounts accounts;
  CHECK(!accounts.restore("a", ::open("/dev/null", O_RDWR | O_CLOEXEC), 0, true));
}

TEST_CASE("a session keeps its turn, and those who wait get it next") {
  asio::io_context context;
  Tenants tenants;
  const Page one = make_page(), two = make_page();
  upgrade::Session first, second;
  {
    GpuTurns before(context, tenants, {});
    before.add(1, kDefaultTenant, "", one);
    before.add(2, kDefaultTenant, "", two);
    for (const auto& [session, page] : {std::pair(1, one), std::pair(2, two)}) {
      (*page)->wants_turn[0] = 1;
      before.read_page(static_cast<uint64_t>(session));
    }
    before.save(1, first);
    before.save(2, second);
  }
  const quota::TurnWord word = word_of(one);
  REQUIRE(!word.closed());
  REQUIRE(word_of(two).closed());
  (*one)->gpus[0].gpu_nanoseconds = 5'000'000'000;

  GpuTurns after(context, tenants, {});
  // In the order of the workers' PIDs, which says nothing of turns.
  after.restore(2, kDefaultTenant, second, two);
  after.restore(1, kDefaultTenant, first, one);
  after.end_restoring();
  CHECK(word_of(one).number() == word.number());
  CHECK(!word_of(one).closed());
  CHECK(word_of(two).closed());
  (*one)->turns[0] = word_of(one).given_up().word;
  (*one)->wants_turn[0] = 0;
  after.read_page(1);
  CHECK(!word_of(two).closed());
}

TEST_CASE("a turn that ended during the upgrade is free") {
  asio::io_context context;
  Tenants tenants;
  const Page one = make_page(), two = make_page();
  upgrade::Session first, second;
  GpuTurns before(context, tenants, {});
  before.add(1, kDefaultTenant, "", one);
  (*one)->wants_turn[0] = 1;
  before.read_page(1);
  before.save(1, first);
  (*one)->turns[0] = word_of(one).given_up().word;  // its message waits in the socket
  (*one)->wants_turn[0] = 0;
  GpuTurns after(context, tenants, {});
  after.restore(1, kDefaultTenant, first, one);
  after.end_restoring();
  after.add(2, kDefaultTenant, "", two);
  (*two)->wants_turn[0] = 1;
  after.read_page(2);
  CHECK(!word_of(two).closed());
}

TEST_CASE("the user of a running worker is not given to another one") {
  auto users = *WorkerUsers::parse("70000-70001");
  const auto kept = users.restore("70000"), foreign = users.restore("60000");
  CHECK(foreign->name == "60000");
  CHECK(taken(users.reserve())->name == "70001");
  const auto other = taken(users.reserve());
  CHECK(other->name == "70001");
  CHECK(!users.reserve());
}

TEST_CASE("a quota survives as a message") {
  quota::Quota quota;
  quota.each.memory_bytes = 1 << 20;
  quota.sessions = 7;
  quota.gpus[3].memory_bytes = 5 << 20;
  const quota::Quota back = quota_of(to_message(quota));
  CHECK(back.each == quota.each);
  CHECK(back.sessions == 7);
  CHECK(back.of(3) == quota.of(3));
  CHECK(back.of(2) == quota.of(2));
}

TEST_CASE("a pair of TCP sockets is connected") {
  const auto pair = make_tcp_pair();
  REQUIRE(pair);
  REQUIRE(::write((*pair)[0], "ab", 2) == 2);
  pollfd polled{(*pair)[1], POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 10'000) == 1);
  char text[3]{};
  CHECK(::read((*pair)[1], text, 2) == 2);
  CHECK(text == std::string("ab"));
  for (const int end : *pair) ::close(end);
}
