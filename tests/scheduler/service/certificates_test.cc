// Tests the certificates of a real pool-scheduler: TLS, and their renewal while it runs.
#include "tests/support/certificates.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

void install(const std::string& from, const std::string& to) {
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
}

std::shared_ptr<grpc::Channel> connect_over_tls(const SchedulerProcess& scheduler, const Authority& trusted) {
  std::ifstream file(trusted.certificate());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(scheduler.address(), grpc::SslCredentials(options), arguments);
}

// True if the scheduler answers a call, which requests nothing.
bool answers(const std::shared_ptr<grpc::Channel>& channel) {
  return LeaseClient(channel, request_call(0, 1)).status().error_code() == grpc::StatusCode::INVALID_ARGUMENT;
}

bool answers(const SchedulerProcess& scheduler, const Authority& trusted) {
  return answers(connect_over_tls(scheduler, trusted));
}

// A scheduler whose files are those that `before` signed, and the files of `after` to replace them by.
struct Renewed {
  const Authority before{"before"}, after{"after"};
  const TemporaryFolder folder;
  const Authority::Files first = before.sign("scheduler", "IP:127.0.0.1"),
                         second = after.sign("scheduler", "IP:127.0.0.1");
  const Authority::Files files{folder.path() / "scheduler.pem", folder.path() / "scheduler.key"};
  std::unique_ptr<SchedulerProcess> scheduler;
  Renewed() {
    install(first.certificate, files.certificate);
    install(first.key, files.key);
    scheduler = std::make_unique<SchedulerProcess>(std::vector<std::string>{
        "--tls-certificate", files.certificate, "--tls-key", files.key, "--tls-interval", "0.2"});
  }
  bool answers_as(const Authority& authority) const { return answers(*scheduler, authority); }
  // gRPC reads its files every second.
  void expect_no_change() const {
    for (int times = 0; times < 20; ++times) {
      CHECK(answers_as(before));
      std::this_thread::sleep_for(100ms);
    }
  }
};

}  // namespace

TEST_CASE("leases are granted over TLS") {
  const Authority authority("pool");
  const auto files = authority.sign("scheduler", "IP:127.0.0.1");
  SchedulerProcess scheduler({"--tls-certificate", files.certificate, "--tls-key", files.key});
  CHECK(answers(scheduler, authority));
  CHECK(LeaseClient(connect(scheduler.address()), request_call(0, 1)).status().error_code() ==
        grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("a renewed certificate is loaded while running and an incomplete one is ignored") {
  Renewed pool;
  const auto connected = connect_over_tls(*pool.scheduler, pool.before);
  CHECK(answers(connected));
  install(pool.second.certificate, pool.files.certificate);
  CHECK(pool.scheduler->await_log("certificate_not_renewed"));
  pool.expect_no_change();
  std::filesystem::remove(pool.files.key);
  CHECK(eventually([&] { return occurrences(pool.scheduler->log(), "certificate_not_renewed") >= 2; }));
  CHECK(pool.answers_as(pool.before));
  install(pool.second.key, pool.files.key);
  CHECK(pool.scheduler->await_log("certificate_renewed"));
  CHECK(eventually([&] { return pool.answers_as(pool.after); }));
  CHECK_FALSE(pool.answers_as(pool.before));
  CHECK(answers(connected));  // connected before the renewal
  install(pool.first.certificate, pool.files.certificate);
  install(pool.first.key, pool.files.key);
  pool.scheduler->process().signal(SIGHUP);
  CHECK(eventually([&] { return pool.answers_as(pool.before); }));
  CHECK(pool.scheduler->stop() == 0);
}

TEST_CASE("a renewed key that others can read or write is not used until its mode is changed") {
  const unsigned mode = GENERATE(0604u, 0602u);
  Renewed pool;
  const std::string fresh = pool.folder.path() / "fresh.key";
  install(pool.second.key, fresh);
  std::filesystem::permissions(fresh, std::filesystem::perms(mode));
  install(pool.second.certificate, pool.files.certificate);
  std::filesystem::rename(fresh, pool.files.key);
  CHECK(eventually([&] {
    return pool.scheduler->log().find("refusing to use '" + pool.files.key + "'") != std::string::npos;
  }));
  pool.scheduler->process().signal(SIGHUP);
  CHECK(eventually([&] { return occurrences(pool.scheduler->log(), "certificate_not_renewed") >= 2; }));
  pool.expect_no_change();
  std::filesystem::permissions(pool.files.key, std::filesystem::perms(0600));
  CHECK(pool.scheduler->await_log("certificate_renewed"));  // without a signal
  CHECK(eventually([&] { return pool.answers_as(pool.after); }));
}
