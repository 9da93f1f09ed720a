// Tests pool-lease's options for jobs of a batch system against a scheduler in this process.
#include "client/lease_client/job.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>

#include "tests/client/lease_client/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

using JobStream = FakeScheduler::Stream;

std::string address_of(const FakeScheduler& scheduler) {
  return "pool://" + scheduler.address() + "?gpus=2&label=job%3D7";
}

FakeScheduler::Serve answers(const std::vector<pool::AcquireEvent>& events, const grpc::Status& status) {
  return [=](const pool::AcquireCall&, JobStream& stream, grpc::ServerContext&) {
    for (const auto& event : events) stream.Write(event);
    return status;
  };
}

pool::AcquireEvent ended(pool::Ended::Why why, const std::string& reason) {
  pool::AcquireEvent event;
  event.mutable_ended()->set_why(why);
  event.mutable_ended()->set_reason(reason);
  return event;
}

Finished check(const std::string& address) {
  return run_to_end({program_path("pool-lease"), "--check", address});
}

// A job's folder, with a pool-lease that holds the lease; the lock of the answer is taken as a plugin does
// it.
class Job {
 public:
  explicit Job(const std::string& address, const Environment& environment = {}) {
    fs::create_directories(folder());
    fs::permissions(folder(), fs::perms::owner_all);
    const std::string start = "exec >'" + folder() + "/answer' 2>'" + folder() +
                              "/log'; flock -n 1 && exec '" + program_path("pool-lease") + "' --hold '" +
                              folder() + "' '" + address + "' 'slurm job 7'";
    Environment all = environment;
    all.emplace("GPUPOOL_LEASE_ID", "seed:7:0");
    holder_ = std::make_unique<Process>(std::vector<std::string>{"sh", "-c", start}, all);
  }
  std::string folder() const { return parent_.path() / "jobs" / "7.0-node"; }
  std::string file(const std::string& name) const { return content_of(folder() + "/" + name); }
  Process& holder() { return *holder_; }
  bool await_granted() const {
    return eventually([&] { return file("answer").starts_with("granted "); });
  }
  void end() const { fs::rename(folder(), parent_.path() / ".ended"); }
  // Ends the job in such a way that the kernel does not tell the holder, which looks every second.
  void end_unseen() const { fs::rename(parent_.path() / "jobs", parent_.path() / "ended"); }
  std::unique_ptr<Process> awaits(const Environment& environment = {}) const {
    return std::make_unique<Process>(
        std::vector<std::string>{program_path("pool-lease"), "--await", folder()}, environment);
  }

 private:
  TemporaryFolder parent_;
  std::unique_ptr<Process> holder_;
};

// Grants the lease and serves it until it is released.
FakeScheduler::Serve holds(std::unique_ptr<FakeScheduler>& scheduler) {
  return [&](const pool::AcquireCall&, JobStream& stream, grpc::ServerContext&) {
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "lease:one"}}));
    return scheduler->await_release(stream) ? grpc::Status::OK : grpc::Status::CANCELLED;
  };
}

}  // namespace

TEST_CASE("a check asks whether a request could be granted and takes nothing") {
  const FakeScheduler scheduler(answers({ended(pool::Ended::RELEASED, "only checked")}, grpc::Status::OK));
  const Finished checked = check(address_of(scheduler));
  CHECK(checked.status == 0);
  CHECK(checked.output.empty());
  REQUIRE(scheduler.calls().size() == 1);
  CHECK(scheduler.calls()[0].request().check_only());
  CHECK(scheduler.calls()[0].request().gpus() == 2);
}

TEST_CASE("a check prints one line for a request that is refused, a wrong token and a wrong address") {
  const FakeScheduler refuses(
      answers({}, {grpc::StatusCode::INVALID_ARGUMENT, "cannot place 2 GPUs: at most 1 GPU fits"}));
  const Finished never = check(address_of(refuses));
  CHECK(never.status == 1);
  CHECK(has(never.output, "gpupool: "));
  CHECK(has(never.output, "cannot place 2 GPUs: at most 1 GPU fits\n"));
  CHECK(std::count(never.output.begin(), never.output.end(), '\n') == 1);

  const FakeScheduler denies(answers({}, {grpc::StatusCode::UNAUTHENTICATED, "no tenant has this token"}));
  const Finished denied = check(address_of(denies));
  CHECK(denied.status == 1);
  CHECK(has(denied.output, "no tenant has this token"));
  CHECK(std::count(denied.output.begin(), denied.output.end(), '\n') == 1);

  const Finished wrong = check("pool://127.0.0.1:1?gpus=none");
  CHECK(wrong.status == 2);
  CHECK(has(wrong.output, "gpupool: gpus must be a whole number"));
}

TEST_CASE("a check without a scheduler ends soon and says that none was reached") {
  int port = 0;
  { port = FakeScheduler(answers({}, grpc::Status::OK)).port(); }
  const Finished checked = check("pool://127.0.0.1:" + std::to_string(port));
  CHECK(checked.status == 3);
  CHECK(has(checked.output, "cannot reach any scheduler"));
}

TEST_CASE("a key that would have gRPC load a library is refused") {
  const TemporaryFolder folder;
  const Finished checked =
      run_to_end({program_path("pool-lease"), "--check", "pool://127.0.0.1:1"},
                 {{"GPUPOOL_TLS_KEY", folder.write_secret("key", "engine:/tmp/library.so:key")}});
  CHECK(checked.status == 1);
  CHECK(has(checked.output, "/key must have a private key in PEM form\n"));
}

TEST_CASE("a job waits for a scheduler that is down when the job starts") {
  int port = 0;
  { port = FakeScheduler(answers({}, grpc::Status::OK)).port(); }
  const Job job("pool://127.0.0.1:" + std::to_string(port));
  const auto task = job.awaits();
  CHECK(task->await_output("gpupool: cannot reach pool-scheduler at 127.0.0.1:" + std::to_string(port)));
  // A program that is started by a user gives up after 10 s.
  CHECK_FALSE(eventually([&] { return !job.file("answer").empty(); }, std::chrono::seconds(12)));
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(holds(scheduler), port);
  CHECK(task->wait() == 0);
  CHECK(job.await_granted());
  job.end();
  CHECK(scheduler->await_calls(2));  // the request and the release
}

TEST_CASE("a check returns the lease of a scheduler that does not know checks") {
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(holds(scheduler));
  CHECK(check(address_of(*scheduler)).status == 0);
  REQUIRE(scheduler->await_calls(2));
  CHECK(scheduler->calls()[1].has_release());
}

TEST_CASE("a job's lease lasts until its folder is renamed") {
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(holds(scheduler));
  Job job(address_of(*scheduler));
  REQUIRE(job.await_granted());
  CHECK(job.file("servers") == "gpupool lease 1\ntcp://192.0.2.1:7 lease:one\n");
  const pool::Request request = scheduler->calls().at(0).request();
  CHECK(request.program() == "slurm job 7");
  CHECK(request.labels(0) == "job=7");
  CHECK(request.id() == lease_client::request_id_of("seed:7:0"));
  CHECK(request.id().size() == 16);
  CHECK_FALSE(request.follow());
  CHECK(scheduler->calls().size() == 1);
  job.end();
  CHECK(job.holder().wait() == 0);
  REQUIRE(scheduler->await_calls(2));
  CHECK(scheduler->calls()[1].has_release());
}

TEST_CASE("a task that awaits its job's lease gets the environment") {
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(holds(scheduler));
  const Job job(address_of(*scheduler));
  const auto task = job.awaits({{"LD_LIBRARY_PATH", "/opt/lib"}, {"NCCL_SHM_DISABLE", "0"}});
  CHECK(task->wait() == 0);
  const std::string printed = task->output();
  CHECK(has(printed, "GPUPOOL=lease:" + job.folder() + "/servers" + '\0'));
  CHECK(has(printed, std::string("/lib/client:/opt/lib") + '\0'));
  CHECK(has(printed, "NCCL_HOSTID="));
  CHECK_FALSE(has(printed, "NCCL_SHM_DISABLE="));
  // A step that was started by a task has that task's variables.
  const size_t begin = printed.find("LD_LIBRARY_PATH=") + std::string("LD_LIBRARY_PATH=").size();
  const auto step =
      job.awaits({{"LD_LIBRARY_PATH", printed.substr(begin, printed.find('\0', begin) - begin)}});
  CHECK(step->wait() == 0);
  CHECK_FALSE(has(step->output(), "LD_LIBRARY_PATH="));
}

TEST_CASE("a task shows what its job's lease waits for, and why it was refused") {
  const FakeScheduler scheduler([](const pool::AcquireCall&, JobStream& stream, grpc::ServerContext&) {
    stream.Write(FakeScheduler::queued(2, 3, "4 GPUs are taken"));
    pool::AcquireCall call;
    stream.Read(&call);  // until the test ends the job
    return grpc::Status::OK;
  });
  const Job waiting(address_of(scheduler));
  const auto task = waiting.awaits();
  CHECK(task->await_output("gpupool: waiting for 2 GPUs: position 2 of 3 in the queue; 4 GPUs are taken\n"));
  waiting.end();
  CHECK(task->wait() == 1);

  const FakeScheduler refuses(answers({}, {grpc::StatusCode::INVALID_ARGUMENT, "cannot place 2 GPUs"}));
  const Job refused(address_of(refuses));
  const auto other = refused.awaits();
  CHECK(other->wait() == 1);
  CHECK(has(other->output(), "cannot place 2 GPUs"));
}

TEST_CASE("a task of a job whose pool-lease was killed is told that the lease is lost") {
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(holds(scheduler));
  Job job(address_of(*scheduler));
  REQUIRE(job.await_granted());
  job.holder().signal(SIGKILL);
  CHECK(job.holder().wait() == 128 + SIGKILL);
  const auto task = job.awaits();
  CHECK(task->wait() == 1);
  CHECK(has(task->output(), "this job's lease is lost: pool-lease was killed on this machine"));
}

TEST_CASE("a machine that follows a job's lease gets its servers and its end, and releases nothing") {
  const FakeScheduler scheduler([](const pool::AcquireCall& first, JobStream& stream, grpc::ServerContext&) {
    if (!first.request().follow()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "does not follow");
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "lease:one"}}));
    pool::AcquireEvent over = ended(pool::Ended::RELEASED, "released by the client");
    stream.Write(over);
    return grpc::Status::OK;
  });
  Job job(address_of(scheduler), {{"GPUPOOL_LEASE_FOLLOW", "1"}});
  CHECK(job.holder().wait() == 1);
  CHECK(job.file("answer").starts_with("granted "));
  CHECK(has(job.file("log"), "the lease has ended: released by the client"));
  CHECK(scheduler.calls().size() == 1);
  const auto task = job.awaits();
  CHECK(task->wait() == 1);
  CHECK(has(task->output(), "this job's lease is lost: the lease has ended: released by the client"));
}

TEST_CASE("a follower reconnects as a follower") {
  std::atomic<int> streams = 0;
  const FakeScheduler scheduler([&](const pool::AcquireCall& first, JobStream& stream, grpc::ServerContext&) {
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "lease:one"}}));
    if (++streams == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts");
    pool::AcquireCall call;
    while (stream.Read(&call) && !call.has_release()) {
    }
    return grpc::Status::OK;
  });
  Job job(address_of(scheduler), {{"GPUPOOL_LEASE_FOLLOW", "1"}});
  REQUIRE(scheduler.await_calls(2));
  const auto calls = scheduler.calls();
  CHECK(calls[1].request().follow());
  CHECK(calls[1].request().id() == calls[0].request().id());
  job.end();
  CHECK(job.holder().wait() == 0);
}

TEST_CASE("a job that ends just before its lease is granted again gives the lease back") {
  std::atomic<Job*> job = nullptr;
  std::atomic<int> streams = 0;
  std::atomic<bool> released = false;
  const FakeScheduler scheduler([&](const pool::AcquireCall&, JobStream& stream, grpc::ServerContext&) {
    if (++streams == 2) {
      job.wait(nullptr);
      job.load()->end_unseen();
    }
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "lease:one"}}));
    if (streams == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts");
    pool::AcquireCall call;
    while (!released && stream.Read(&call)) released = call.has_release();
    return grpc::Status::OK;
  });
  Job started(address_of(scheduler));
  job = &started;
  job.notify_one();
  CHECK(started.holder().wait() == 0);
  CHECK(released);
}
