// Tests the settings for a server to which a session moves: its token comes from the lease file, which
// pool-lease changes meanwhile. In child processes, because a process connects once.
#include <thread>

#include "client/lease/file.h"
#include "client/process/process.h"
#include "client/session/migrator.h"
#include "tests/client/child.h"
#include "tests/support/catch.h"
#include "tests/support/fake_worker.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;

namespace {

const transport::Endpoint kNext{"tcp", "192.0.2.2", 7};

struct Leased {
  std::string file;
  transport::Endpoint home;

  bool write(const std::vector<LeasedServer>& next) const {
    return write_lease_file(file, {{home, "first", next}}).ok();
  }
  static std::string token_for(const std::string& address) {
    const auto found = settings_for(address, {});
    if (!found) return found.error().message;
    return found->server == address ? found->token : "settings for " + found->server;
  }
};

// Calls `body` in a child that is connected by a lease of one server.
std::string with_lease(const std::function<std::string(const Leased&)>& body) {
  const auto got = in_child({{"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}}, [&]() -> std::string {
    const TemporaryFolder folder;
    FakeWorker& worker = *new FakeWorker;
    const Leased leased{folder.path() / "lease", worker.endpoint()};
    if (!leased.write({})) return "cannot write the lease file";
    ::setenv("GPUPOOL", ("lease:" + leased.file).c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return "cannot connect";
    return body(leased);
  });
  INFO(got.errors);
  return got.result;
}

}  // namespace

TEST_CASE("migrator: takes the token of a server that the lease has, or to which it moves") {
  CHECK(with_lease([](const Leased& leased) { return leased.token_for(leased.home.text()); }) == "first");
  CHECK(with_lease([](const Leased& leased) {
          if (!leased.write({{kNext, "second"}})) return std::string("cannot write the lease file");
          return leased.token_for(kNext.text());
        }) == "second");
}

TEST_CASE("migrator: waits for the token of a server that the lease is yet to get") {
  CHECK(with_lease([](const Leased& leased) {
          std::thread writer([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the lease changes later
            (void)leased.write({{kNext, "second"}});
          });
          const std::string token = leased.token_for(kNext.text());
          writer.join();
          return token;
        }) == "second");
}

TEST_CASE("migrator: refuses a server that the lease does not get") {
  CHECK(with_lease([](const Leased& leased) { return leased.token_for(kNext.text()); }) ==
        "the lease has no GPUs at tcp://192.0.2.2:7");
}

TEST_CASE("migrator: servers without a lease share the tenant's token") {
  const auto got = in_child({{"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}}, [] {
    const FakeWorker& worker = *new FakeWorker;
    ::setenv("GPUPOOL", worker.url().c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return std::string("cannot connect");
    Settings settings;
    settings.token = "tenant's";
    const auto found = settings_for(kNext.text(), settings);
    return found ? found->server + " " + found->token : found.error().message;
  });
  CHECK(got.result == "tcp://192.0.2.2:7 tenant's");
}
