// A compromised worker that says again and again that the GPU is full, to have other tenants' abandoned
// sessions ended.
#include "server/poold/workers/abandoned_sessions.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;
using std::chrono::seconds;

namespace {

constexpr pid_t kAsking = 1000;

// Workers that are no processes, each with the session of its PID.
struct FakeWorkers {
  ~FakeWorkers() {
    for (const int end : ends) ::close(end);
  }
  Worker& add(pid_t pid, const std::string& tenant) {
    StartedWorker started{.pid = pid};
    for (int* const socket : {&started.control, &started.output}) {
      int pair[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
      *socket = pair[0];
      ends.push_back(pair[1]);
    }
    started.page = *quota::SharedPage<quota::SessionPage>::create("session");
    (*started.page)->gpus[0].memory_used = 1;
    const auto worker = std::make_shared<Worker>(context, std::move(started));
    worker->state = Worker::Stage::serving;
    worker->session = static_cast<uint64_t>(pid);
    worker->client.tenant = tenant;
    workers.all()[pid] = worker;
    return *worker;
  }
  void abandon(pid_t pid, const std::string& tenant) {
    Worker& worker = add(pid, tenant);
    worker.breaks.abandoned = true;
    worker.breaks.since[0] = Breaks::Clock::now() - seconds(1);
  }
  // Returns true if a session has ended for the question.
  bool ask() {
    const size_t before = ended.size();
    CHECK(sessions.reclaim(*workers.all().at(kAsking),
                           {.question = ++question, .gpu = 0, .reason = packet::ReclaimReason::gpu_full}));
    if (ended.size() == before) return false;
    for (size_t at = before; at < ended.size(); ++at) {
      const auto victim = workers.all().extract(static_cast<pid_t>(ended[at]));
      sessions.session_ended(*victim.mapped());
    }
    return true;
  }

  asio::io_context context;
  const WorkerProcesses processes{};
  Workers workers{processes};
  std::vector<uint64_t> ended;
  AbandonedSessions sessions{context, workers,
                             [this](uint64_t session, const std::string&) { ended.push_back(session); }};
  std::vector<int> ends;
  uint64_t question = 0;
};

}  // namespace

TEST_CASE("a worker that says that the GPU is full has a bounded number of others' sessions ended") {
  FakeWorkers fake;
  fake.add(kAsking, "attacker");
  for (pid_t pid = 1; pid <= 40; ++pid) fake.abandon(pid, "other");
  size_t ended = 0;
  for (int times = 0; times < 40; ++times) ended += fake.ask();
  CHECK(ended >= 8);
  CHECK(ended <= 12);  // one more each 5 s
  const size_t before = fake.ended.size();
  for (pid_t pid = 101; pid <= 110; ++pid) fake.abandon(pid, "attacker");
  while (fake.ask()) {
  }
  size_t own = 0;
  for (size_t at = before; at < fake.ended.size(); ++at) own += fake.ended[at] > 100;
  CHECK(own == 10);  // not limited
}
