// Tests pool-lease, started by pool-run and by the client library, against a scheduler in this process and a
// poold.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/client/lease_client/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/hostile_text.h"
#include "tests/support/poold_process.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

using Stream = FakeScheduler::Stream;
using Calls = std::vector<pool::AcquireCall>;

std::string url(const FakeScheduler& scheduler) {
  return "pool://" + scheduler.address();
}

// Grants at once and reads until the lease is released.
FakeScheduler::Serve grants(const std::vector<std::pair<std::string, std::string>>& servers) {
  return [servers](const pool::AcquireCall&, Stream& stream, grpc::ServerContext&) {
    stream.Write(FakeScheduler::granted(servers));
    pool::AcquireCall call;
    while (stream.Read(&call) && !call.has_release()) {
    }
    return grpc::Status::OK;
  };
}

struct Run {
  Finished finished;
  Calls calls;
};

// A runtime folder for lease files.
class Home {
 public:
  Environment with(Environment more = {}) const {
    more["XDG_RUNTIME_DIR"] = folder_.path();
    more["GPUPOOL_TOKEN"] = "the-token";
    return more;
  }
  bool is_empty() const { return fs::is_empty(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("a program gets the servers of its lease and returns the lease when it ends") {
  const Home home;
  std::unique_ptr<FakeScheduler> scheduler;
  std::string shown;
  std::mutex mutex;
  scheduler = std::make_unique<FakeScheduler>([&](const pool::AcquireCall&, Stream& stream,
                                                  grpc::ServerContext& context) {
    {
      const std::lock_guard lock(mutex);
      const auto header = context.client_metadata().find("authorization");
      if (header != context.client_metadata().end()) shown = {header->second.data(), header->second.size()};
    }
    stream.Write(FakeScheduler::queued(2, 3, "4 GPUs are taken"));
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "lease:one"}, {"tls://host:8", "lease:two"}}));
    return scheduler->await_release(stream) ? grpc::Status::OK : grpc::Status::CANCELLED;
  });
  const Finished app =
      run_to_end({program_path("pool-run"), "--server", url(*scheduler), "--gpus", "2", "--memory=8GiB",
                  "--compute", "50", "--priority", "low", "--model", "A 100&x", "--one-host", "--", "sh",
                  "-c", "cat ${GPUPOOL#lease:}; stat -c %a ${GPUPOOL#lease:}; exit 5"},
                 home.with());
  INFO(app.output);
  CHECK(app.status == 5);
  CHECK(has(app.output, "waiting for 2 GPUs: position 2 of 3 in the queue; 4 GPUs are taken\n"));
  CHECK(has(app.output, "gpupool lease 1\ntcp://192.0.2.1:7 lease:one\ntls://host:8 lease:two\n600\n"));
  REQUIRE(scheduler->await_calls(2));
  const Calls calls = scheduler->calls();
  const pool::Request& request = calls[0].request();
  CHECK(request.gpus() == 2);
  CHECK(request.memory_bytes() == 8ull << 30);
  CHECK(request.compute_milli() == 500);
  CHECK(request.priority() == lease::BEST_EFFORT);
  CHECK(request.models(0) == "A 100&x");
  CHECK(request.one_host());
  CHECK(request.pid() > 0);
  CHECK(request.program() == "sh");
  CHECK(calls[1].has_release());
  CHECK(eventually([&] { return home.is_empty(); }));
  const std::lock_guard lock(mutex);
  CHECK(shown == "Bearer the-token");
}

TEST_CASE("does not wait long for a scheduler that does not take the lease back and leaves no files") {
  const Home home;
  const auto scheduler = std::make_unique<FakeScheduler>(
      [](const pool::AcquireCall&, Stream& stream, grpc::ServerContext& context) {
        stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "token"}}));
        while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return grpc::Status::CANCELLED;
      });
  Process app({program_path("pool-run"), "--server", url(*scheduler), "--", "true"}, home.with());
  CHECK(app.wait() == 0);
  CHECK(app.await_end_of_output());  // pool-lease has exited
  CHECK(home.is_empty());
}

TEST_CASE("requests no lease if the program exited before pool-lease started") {
  const Home home;
  FakeScheduler scheduler(grants({{"tcp://192.0.2.1:7", "token"}}));
  Process gone({"true"}, {});
  const std::string pid = std::to_string(gone.pid());
  CHECK(gone.wait() == 0);
  const Finished helper = run_to_end({program_path("pool-lease"), url(scheduler), "app", pid}, home.with());
  CHECK(helper.status == 1);
  CHECK(has(helper.output, "refused the starting program has exited"));
  CHECK(run_to_end({program_path("pool-lease"), url(scheduler), "app", "1"}, home.with()).status == 1);
  CHECK(scheduler.calls().empty());
  CHECK(home.is_empty());
}

TEST_CASE("an interrupted program leaves the queue") {
  const Home home;
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler =
      std::make_unique<FakeScheduler>([&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext&) {
        stream.Write(FakeScheduler::queued(1, 1, ""));
        return scheduler->await_release(stream) ? grpc::Status::OK : grpc::Status::CANCELLED;
      });
  for (const int signal : {SIGINT, SIGKILL}) {
    const size_t before = scheduler->calls().size();
    Process waiting({program_path("pool-run"), "--server", url(*scheduler), "--", "true"}, home.with());
    REQUIRE(waiting.await_output("waiting for 1 GPU: position 1 of 1 in the queue\n"));
    waiting.signal(signal);
    CHECK(waiting.wait() == 128 + signal);
    REQUIRE(scheduler->await_calls(before + 2));
    CHECK(scheduler->calls().back().has_release());
    CHECK(waiting.await_end_of_output());
  }
  CHECK(home.is_empty());
}

TEST_CASE("a refusal by the scheduler and a malformed address end with the reason") {
  const Home home;
  FakeScheduler scheduler([](const pool::AcquireCall&, Stream&, grpc::ServerContext&) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no GPU here has 900 GiB");
  });
  const Finished refused =
      run_to_end({program_path("pool-run"), "--server", url(scheduler), "--", "true"}, home.with());
  CHECK(refused.status == 125);
  CHECK(has(refused.output, "no GPU here has 900 GiB"));
  CHECK(scheduler.calls().size() == 1);

  const Finished wrong = run_to_end(
      {program_path("pool-run"), "--server", url(scheduler), "--gpus", "none", "true"}, home.with());
  CHECK(wrong.status == 2);
  CHECK(has(wrong.output, "gpus must be"));
  const Finished no_pool =
      run_to_end({program_path("pool-run"), "--server", "tcp://h:1", "--gpus", "2", "true"}, home.with());
  CHECK(no_pool.status == 2);
  CHECK(has(no_pool.output, "--gpus requires a pool"));
  CHECK(run_to_end({program_path("pool-run"), "--gpus"}, home.with()).status == 2);
  CHECK(home.is_empty());
}

TEST_CASE("names a scheduler that cannot be reached") {
  const Home home;
  uint16_t port = 0;
  {
    const FakeScheduler gone(
        [](const pool::AcquireCall&, Stream&, grpc::ServerContext&) { return grpc::Status::OK; });
    port = static_cast<uint16_t>(gone.port());
  }
  const Finished refused =
      run_to_end({program_path("pool-run"), "--server", "pool://127.0.0.1:" + std::to_string(port), "true"},
                 home.with());
  CHECK(refused.status == 125);
  CHECK(has(refused.output,
            "cannot reach any scheduler: cannot reach pool-scheduler at 127.0.0.1:" + std::to_string(port) +
                " (Connection refused): check host and port, and that pool-scheduler is running"));
  CHECK_FALSE(has(refused.output, "failed to connect to all addresses"));
}

TEST_CASE("names a wrong service at a scheduler's address") {
  const Home home;
  PooldProcess poold("softgpu");
  const std::string port = std::to_string(poold.endpoint().port);
  const Finished refused =
      run_to_end({program_path("pool-run"), "--server", "pool://127.0.0.1:" + port, "true"}, home.with());
  INFO(refused.output);
  CHECK(refused.status == 125);
  CHECK(has(refused.output, "cannot reach pool-scheduler at 127.0.0.1:" + port +
                                " (the server there does not speak gRPC, or requires TLS): check host and "
                                "port: poold addresses are tcp://HOST:PORT"));
  CHECK_FALSE(has(refused.output, "recvmsg"));
}

TEST_CASE("a lease survives the scheduler's death and gets renewed tokens and reports its end") {
  const Home home;
  std::atomic<int> step{0};
  auto scheduler = std::make_unique<FakeScheduler>(
      [&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext& context) {
        stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "old"}}));
        while (step == 0 && !context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down");
      });
  const int port = scheduler->port();
  const std::string script =
      "until grep -q NEW ${GPUPOOL#lease:}; do sleep 0.05; done; echo renewed; until grep -qv . "
      "${GPUPOOL#lease:} || [ $(wc -l <${GPUPOOL#lease:}) = 1 ]; do sleep 0.05; done; echo over";
  Process app({program_path("pool-run"), "--server", url(*scheduler), "--", "sh", "-c", script}, home.with());
  REQUIRE(scheduler->await_calls(1));
  step = 1;
  CHECK(app.await_output("lost the connection to scheduler"));
  scheduler.reset();
  scheduler = std::make_unique<FakeScheduler>(
      [&](const pool::AcquireCall& first, Stream& stream, grpc::ServerContext& context) {
        if (first.resume().lease() != "the lease" || first.resume().secret() != "the secret")
          return grpc::Status(grpc::StatusCode::NOT_FOUND, "who?");
        stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "NEW"}}));
        while (step == 1 && !context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        pool::AcquireEvent ended;
        ended.mutable_ended()->set_why(pool::Ended::PREEMPTED);
        ended.mutable_ended()->set_reason("somebody with priority needs it");
        stream.Write(ended);
        return grpc::Status::OK;
      },
      port);
  CHECK(app.await_output("renewed"));
  CHECK(has(app.output(), "reconnected to the scheduler"));
  step = 2;
  CHECK(app.wait() == 0);
  CHECK(app.await_end_of_output());
  CHECK(has(app.output(), "the lease has ended: somebody with priority needs it"));
  CHECK(has(app.output(), "over"));
  CHECK(eventually([&] { return home.is_empty(); }));
}

TEST_CASE("another user cannot prepare the file that the next tokens are written to") {
  if (::geteuid() != 0) return report_skip("only root can try this as another user");
  const TemporaryFolder shared;  // like /tmp without fs.protected_regular
  fs::permissions(shared.path(), fs::perms(0777));
  std::atomic<bool> renew{false};
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(
      [&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext& context) {
        stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "old"}}));
        while (!renew && !context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "NEW"}}));
        return scheduler->await_release(stream) ? grpc::Status::OK : grpc::Status::CANCELLED;
      });
  const std::string script =
      "echo file ${GPUPOOL#lease:} .; until grep -q NEW ${GPUPOOL#lease:}; do sleep 0.05; done; echo renewed";
  Process app({program_path("pool-run"), "--server", url(*scheduler), "--", "sh", "-c", script},
              {{"XDG_RUNTIME_DIR", shared.path()}});
  REQUIRE(app.await_output(" .\n"));
  const std::string output = app.output();
  const size_t begin = output.find("file ") + 5;
  const std::string file = output.substr(begin, output.find(" .\n") - begin);

  const std::string attack =
      "umask 0; if ( : >\"$0.new\" ) 2>/dev/null; then exec 3<\"$0.new\"; echo tried; until grep -q NEW "
      "/proc/$$/fd/3; do sleep 0.05; done; exit 0; fi; echo tried; exit 7";
  Process attacker(
      {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", attack, file}, {});
  REQUIRE(attacker.await_output("tried"));
  renew = true;
  CHECK(app.await_output("renewed"));
  CHECK(attacker.wait() == 7);  // 0: it has read the token
  CHECK(app.wait() == 0);
  CHECK(app.await_end_of_output());
  CHECK(eventually([&] { return fs::is_empty(shared.path()); }));
}

TEST_CASE("pool-lease and pool-admin refuse a private key that others can read") {
  const Home home;
  const TemporaryFolder folder;
  FakeScheduler scheduler(grants({{"tcp://192.0.2.1:7", "x"}}));
  const std::string key = folder.write("client.key", "key");
  fs::permissions(key, fs::perms(0644));
  const std::string why =
      "GPUPOOL_TLS_KEY: refusing to use '" + key + "': other users can read it; run chmod 600";
  const Finished run = run_to_end({program_path("pool-run"), "--server", url(scheduler), "--", "true"},
                                  home.with({{"GPUPOOL_TLS_KEY", key}}));
  CHECK(run.status == 125);
  CHECK(has(run.output, why));
  const Finished admin = run_to_end(
      {program_path("pool-admin"), "--scheduler", scheduler.address(), "health"}, {{"GPUPOOL_TLS_KEY", key}});
  CHECK(admin.status == 2);
  CHECK(has(admin.output, why));
  CHECK(scheduler.calls().empty());
}

TEST_CASE("a scheduler's texts are printed without control characters and with a length limit") {
  const Home home;
  const std::string text = kHostileText + std::string(100'000, 'x');
  FakeScheduler refusing([&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext&) {
    stream.Write(FakeScheduler::queued(1, 1, text));
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, kHostileText);
  });
  FakeScheduler ending([&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext&) {
    pool::AcquireEvent ended;
    ended.mutable_ended()->set_why(pool::Ended::EVICTED);
    ended.mutable_ended()->set_reason(text);
    stream.Write(ended);
    return grpc::Status::OK;
  });
  FakeScheduler lying(grants({{"tcp://" + kHostileText, "token"}}));
  FakeScheduler forging(grants({{"tcp://192.0.2.1:7", "token\ntcp://198.51.100.1:9 " + kHostileText}}));
  for (const FakeScheduler* const scheduler : {&refusing, &ending, &lying, &forging}) {
    const Finished run =
        run_to_end({program_path("pool-run"), "--server", url(*scheduler), "--", "true"}, home.with());
    INFO(run.output);
    CHECK(run.status == 125);
    CHECK(is_harmless(run.output));
    CHECK(run.output.size() < 8 * 1024);
    CHECK(eventually([&] { return home.is_empty(); }));
  }
}

TEST_CASE("uses a token replaced in its file on the next connection to the scheduler") {
  const Home home;
  const TemporaryFolder folder;
  const std::string token_file = folder.write("token", "the-old-token\n");
  std::mutex mutex;
  std::vector<std::string> shown;
  std::atomic<int> step{0};
  FakeScheduler scheduler([&](const pool::AcquireCall&, Stream& stream, grpc::ServerContext& context) {
    const auto header = context.client_metadata().find("authorization");
    size_t streams = 0;
    {
      const std::lock_guard lock(mutex);
      shown.emplace_back(header->second.data(), header->second.size());
      streams = shown.size();
    }
    stream.Write(FakeScheduler::granted({{"tcp://192.0.2.1:7", "token"}}));
    while (step == 0 && !context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (streams == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down");
    pool::AcquireEvent ended;
    ended.mutable_ended()->set_why(pool::Ended::EVICTED);
    stream.Write(ended);
    return grpc::Status::OK;
  });
  Process app(
      {program_path("pool-run"), "--server", url(scheduler), "--token-file", token_file, "--", "sh", "-c",
       "until grep -qv . ${GPUPOOL#lease:} || [ $(wc -l <${GPUPOOL#lease:}) = 1 ]; do sleep 0.05; done"},
      home.with());
  REQUIRE(scheduler.await_calls(1));
  folder.write("token", "the-new-token\n");
  step = 1;
  CHECK(app.wait() == 0);
  const std::lock_guard lock(mutex);
  CHECK(shown == std::vector<std::string>{"Bearer the-old-token", "Bearer the-new-token"});
}

TEST_CASE("tries another scheduler of the pool if one is down or not the leader") {
  const Home home;
  FakeScheduler leader(grants({{"tcp://192.0.2.1:7", "x"}}));
  FakeScheduler other([&](const pool::AcquireCall&, Stream&, grpc::ServerContext& context) {
    context.AddTrailingMetadata("leader", leader.address());
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not the leader");
  });
  CHECK(run_to_end({program_path("pool-run"), "--server", url(other), "true"}, home.with()).status == 0);
  CHECK(leader.calls().size() == 1);
  CHECK(run_to_end({program_path("pool-run"), "--server", "pool://127.0.0.1:1," + leader.address(), "true"},
                   home.with())
            .status == 0);
  CHECK(leader.calls().size() == 2);
}

TEST_CASE("the library requests a lease itself and fails with the reason") {
  const Home home;
  PooldProcess poold("softgpu");
  FakeScheduler scheduler(grants({{poold.url(), "x"}}));
  const Environment environment = home.with(
      {{"LD_LIBRARY_PATH", fs::path(program_path("pool-run")).parent_path().parent_path() / "lib" / "client"},
       {"GPUPOOL", url(scheduler) + "?gpus=1"}});
  const Finished app = run_to_end({DEVICE_COUNT_APP}, environment);
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(has(app.output, "devices: 1"));
  CHECK(poold.await_log("session_ended"));
  CHECK(eventually([&] { return home.is_empty(); }));

  Environment wrong = environment;
  wrong["GPUPOOL"] = url(scheduler) + "?gpus=x";
  const Finished refused = run_to_end({DEVICE_COUNT_APP}, wrong);
  CHECK(has(refused.output, "gpus must be"));
  CHECK(refused.status == 1);
}
