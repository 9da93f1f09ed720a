// Tests of failures specific to the etcd store: dead members, a suspended leader, lost replies.
#include "tests/support/etcd.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <thread>

#include "common/log/log.h"
#include "scheduler/store/open/open_store.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<Store> open(const EtcdCluster& etcd, const transport::TlsOptions& tls = {}) {
  auto store = open_store(etcd.store(), tls);
  REQUIRE(store);
  return std::move(*store);
}

// Captures this process's log while the object exists.
class Log {
 public:
  Log() : file_(::memfd_create("log", MFD_CLOEXEC)) {
    log::start(file_, log::Level::debug, log::Format::text, "test");
  }
  ~Log() {
    log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
    ::close(file_);
  }
  std::string text() const {
    std::string text(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    return ::pread(file_, text.data(), text.size(), 0) < 0 ? "" : text;
  }

 private:
  const int file_;
};

// Returns true if etcd has renewed the leader's lease of 3 s within the last second.
bool has_fresh_lead(const EtcdCluster& etcd) {
  std::istringstream listed(etcd.etcdctl({"lease", "list"}));  // "found 1 leases", then the lease id
  std::string lease;
  while (listed >> lease) {
  }
  return etcd.etcdctl({"lease", "timetolive", lease}).find("remaining(2s)") != std::string::npos;
}

// Campaigns until the store leads; returns the term.
uint64_t lead(Store& store, const std::string& name) {
  uint64_t term = 0;
  CHECK(eventually([&] {
    const auto won = store.campaign(name, 1s);
    if (won) term = *won;
    return bool(won);
  }));
  return term;
}

// Writes; if a pause of the machine has ended the term, campaigns again and writes in the next term.
void write_at_last(Store& store, const std::vector<Write>& writes, uint64_t& term) {
  std::string reason;
  const bool written = eventually([&] {
    const auto done = store.write(writes, term);
    if (!done) reason = done.error().message;
    if (!done && !store.leads()) term = lead(store, "again");
    return bool(done);
  });
  INFO(reason);
  REQUIRE(written);
}

}  // namespace

TEST_CASE("a suspended leader loses leadership and detects it") {
  EtcdCluster etcd;
  Process sleeper({program_path("store_leader"), etcd.store(), "sleeper"}, {});
  REQUIRE(sleeper.await_output("written"));
  sleeper.signal(SIGSTOP);
  const auto store = open(etcd);
  uint64_t term = lead(*store, "awake");
  CHECK(term > 1);
  write_at_last(*store, {{"all/0", "new"}}, term);
  sleeper.signal(SIGCONT);
  CHECK(sleeper.await_output("lost"));
  CHECK(store->all("all/0")->at(0).second == "new");
}

TEST_CASE("a leader without its etcd key cannot write before its lease expires") {
  EtcdCluster etcd;
  const auto store = open(etcd);
  uint64_t term = lead(*store, "one");
  write_at_last(*store, {{"a", "1"}}, term);
  etcd.etcdctl({"del", "test/leader"});
  CHECK(store->write({{"a", "2"}}, term).error().code == ErrorCode::refused);
  CHECK(!store->leads());
  CHECK(store->all("a")->at(0).second == "1");
  const auto other = open(etcd);
  CHECK(lead(*other, "two") > term);
}

TEST_CASE("a write is applied once if its reply is lost") {
  EtcdCluster etcd;
  const Log log;
  const auto store = open(etcd);
  uint64_t term = lead(*store, "one");
  const auto failed = [&] { return occurrences(log.text(), "store_attempt_failed call=transact"); };
  // Writes while etcd is paused. After the pause etcd processes all requests sent meanwhile, including
  // abandoned ones. Returns false if nothing was sent, because the machine paused for longer than the
  // leader's lease.
  const auto write_in_a_pause = [&](const std::string& value) {
    if (!store->leads()) term = lead(*store, "again");
    const size_t before = failed();
    etcd.pause();
    Result<void> written = Error{};
    std::atomic<bool> done = false;
    std::thread writer([&] { written = store->write({{"a", value}}, term), done = true; });
    CHECK(eventually([&] { return failed() > before || done; }));
    etcd.resume();
    writer.join();
    return written && failed() > before;
  };
  for (int i = 0; i < 3; ++i) {
    CHECK(eventually([&] { return write_in_a_pause(std::to_string(i)); }));
    write_at_last(*store, {{"b", std::to_string(i)}}, term);
    CHECK(*store->all("") == std::vector<Entry>{{"a", std::to_string(i)}, {"b", std::to_string(i)}});
    CHECK(eventually([&] { return has_fresh_lead(etcd); }));
  }
}

TEST_CASE("without etcd there is no leader and the data is intact when it returns") {
  EtcdCluster etcd;
  const auto store = open(etcd);
  uint64_t term = lead(*store, "one");
  write_at_last(*store, {{"a", "1"}}, term);
  etcd.kill(0);
  const auto start = std::chrono::steady_clock::now();
  const ErrorCode failed = store->write({{"a", "2"}}, term).error().code;
  CHECK((failed == ErrorCode::unavailable || failed == ErrorCode::refused));  // refused: a pause
  CHECK(std::chrono::steady_clock::now() - start < 20s);
  CHECK(!store->leads());
  CHECK(store->campaign("one", 100ms).error().code == ErrorCode::unavailable);
  CHECK(store->all("").error().code == ErrorCode::unavailable);
  CHECK(!store->leader());
  etcd.start(0);
  CHECK(lead(*store, "one") > term);
  CHECK(*store->all("") == std::vector<Entry>{{"a", "1"}});
}

TEST_CASE("a three-member cluster keeps acknowledged writes while members fail in turn") {
  EtcdCluster etcd({.members = 3});
  const auto store = open(etcd);
  uint64_t term = lead(*store, "one");
  const auto stored = [&] {
    const auto entries = *store->all("a");
    return entries.empty() ? std::string() : entries[0].second;
  };
  std::string last;  // the last acknowledged value; even the first write may fail
  for (int round = 0; round < 3; ++round) {
    const size_t victim = round == 0 ? etcd.leader() : (etcd.leader() + 1) % 3;
    REQUIRE(victim < 3);
    etcd.kill(victim);
    for (int i = 0; i < 20; ++i) {
      const std::string value = std::to_string(round) + "/" + std::to_string(i);
      if (store->write({{"a", value}}, term)) {
        last = value;
        continue;
      }
      const uint64_t next = lead(*store, "one");
      CHECK(next > term);
      term = next;
      const std::string now = stored();
      CHECK((now == last || now == value));
      last = now;
    }
    CHECK(stored() == last);
    etcd.start(victim);
    REQUIRE(etcd.await_ready());
  }
}

TEST_CASE("large writes of a killed leader are atomic") {
  EtcdCluster etcd;
  for (int round = 0; round < 4; ++round) {
    Process writer({program_path("store_leader"), etcd.store(), "w" + std::to_string(round)}, {});
    REQUIRE(writer.await_output("written"));
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    writer.signal(SIGKILL);
    writer.wait();
    const auto store = open(etcd);
    const auto check = [&] {
      const auto entries = *store->all("all/");
      REQUIRE(entries.size() == 400);
      CHECK(std::all_of(entries.begin(), entries.end(),
                        [&](const Entry& entry) { return entry.second == entries[0].second; }));
    };
    check();  // reading does not need the leadership
    lead(*store, "next");
    check();
    CHECK(etcd.etcdctl({"get", "--keys-only", "--prefix", "test/batch"}).empty());
  }
}

TEST_CASE("writes at etcd's limits") {
  EtcdCluster etcd;
  const auto store = open(etcd);
  uint64_t term = lead(*store, "one");
  size_t entries = 0;
  for (const size_t count : {127, 128, 129, 1000}) {
    std::vector<Write> writes;
    for (size_t i = 0; i < count; ++i)
      writes.push_back({std::to_string(count) + "/" + std::to_string(i), "x"});
    write_at_last(*store, writes, term);
    entries += count;
    CHECK(store->all("")->size() == entries);
  }
  for (const size_t bytes : {1'000'000, 1'048'500, 1'200'000}) {
    const std::string value(bytes, 'v');
    write_at_last(*store, {{"large", value}}, term);
    CHECK(store->all("large")->at(0).second == value);
  }
  write_at_last(*store,
                {{"large/1", std::string(900'000, '1')},
                 {"large/2", std::string(900'000, '2')},
                 {"large/3", std::string(900'000, '3')}},
                term);
  CHECK(store->all("large/")->size() == 3);
  CHECK(store->write({{"a", "1"}, {"larger", std::string(2'000'000, 'v')}}, term).error().code ==
        ErrorCode::limit);
  CHECK(store->all("a")->empty());
  CHECK(store->leads());
}

TEST_CASE("two pools in one etcd cluster are isolated") {
  EtcdCluster etcd;
  auto one = open_store(etcd.store("a")), two = open_store(etcd.store("b"));
  const auto first = (*one)->campaign("one", 5s), second = (*two)->campaign("two", 5s);
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE((*one)->write({{"k", "1"}}, *first));
  CHECK((*two)->all("")->empty());
}

TEST_CASE("etcd with TLS") {
  const Authority authority("etcd"), other("other");
  const auto server = authority.sign("etcd", "IP:127.0.0.1");
  const auto client = authority.sign("scheduler");
  EtcdCluster etcd(
      {.tls = true, .certificate = server.certificate, .key = server.key, .ca = authority.certificate()});
  const transport::TlsOptions good{
      .ca = authority.certificate(), .certificate = client.certificate, .key = client.key, .secret = ""};
  const auto store = open(etcd, good);
  const uint64_t term = lead(*store, "one");
  CHECK(store->write({{"a", "1"}}, term));
  for (const auto& tls :
       {transport::TlsOptions{.ca = authority.certificate(), .certificate = "", .key = "", .secret = ""},
        transport::TlsOptions{
            .ca = other.certificate(), .certificate = client.certificate, .key = client.key, .secret = ""}}) {
    CHECK(open(etcd, tls)->campaign("two", 100ms).error().code == ErrorCode::unavailable);
  }
  CHECK(open_store("etcd://127.0.0.1:1", good).error().message.find("etcds://") != std::string::npos);
  CHECK(open_store("etcds://127.0.0.1:1", {.ca = "/nowhere", .certificate = "", .key = "", .secret = ""})
            .error()
            .code == ErrorCode::invalid);
}
