// Tests a real poold as a node of a pool, against a gRPC scheduler in this process and clients that present
// its leases.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "tests/server/fake_device_library.h"
#include "tests/server/poold/node/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/lease_maker.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

struct Files {
  TemporaryFolder folder;
  const std::string token = folder.write_secret("token", "node-secret\n");
};

std::vector<std::string> attending(const LeaseMaker& maker, const Files& files,
                                   const std::vector<std::string>& schedulers,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> options = maker.options();
  for (const std::string& scheduler : schedulers) {
    options.insert(options.end(), {"--pool-scheduler", scheduler});
  }
  options.insert(options.end(), {"--pool-token-file", files.token});
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

hello::Hello with_lease(const std::string& token) {
  hello::Hello hello = test_hello();
  hello.token = token;
  return hello;
}

hello::HelloReply answer(const PooldProcess& poold, const std::string& token) {
  RawClient client(poold.endpoint());
  client.send_hello(with_lease(token));
  return client.receive_reply();
}

std::string health(const PooldProcess& poold) {
  return run_to_end({program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket(), "health"}).output;
}

}  // namespace

TEST_CASE("poold reports its identity and its devices to the scheduler") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const Files files;
  PooldProcess poold(
      kDevice, attending(maker, files, {scheduler.address()},
                         {"--pool-insecure", "--pool-rack", "r1", "--pool-zone", "z1", "--pool-cpu-milli",
                          "8000", "--pool-host-memory", "64GiB", "--pool-address", "tls://gpu-1:9700"}));
  REQUIRE(scheduler.await_report());
  CHECK(scheduler.authorization() == "Bearer node-secret");
  const pool::Inventory inventory = scheduler.inventory();
  CHECK(inventory.node() == "gpu-1");
  CHECK(inventory.boot().size() == 16);
  REQUIRE(inventory.gpus_size() == 2);
  CHECK(inventory.gpus(0).uuid().size() == 40);
  CHECK(inventory.gpus(0).uuid() != inventory.gpus(1).uuid());
  CHECK(inventory.gpus(0).memory_bytes() != 0);
  CHECK_FALSE(inventory.gpus(0).model().empty());
  CHECK(inventory.cpu_milli() == 8000);
  CHECK(inventory.host_memory_bytes() == uint64_t{64} << 30);
  CHECK(inventory.rack() == "r1");
  CHECK(inventory.zone() == "z1");
  REQUIRE(inventory.addresses_size() == 1);
  CHECK(inventory.addresses(0) == "tls://gpu-1:9700");
  CHECK(scheduler.await([](const pool::NodeReport& report) {
    return !report.has_inventory() && report.ready() && report.gpus_size() == 2 && report.now_ms() > 0 &&
           report.key_ids_size() == 1;
  }));
  CHECK(scheduler.await(
      [&](const pool::NodeReport& report) { return report.key_ids(0) == maker.public_key().id(); }));
  CHECK(poold.await_log("scheduler_attends"));
  CHECK(has(health(poold), "registered with " + scheduler.address()));
  CHECK(poold.stop() == 0);
}

TEST_CASE("poold reports its shutdown to the scheduler") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const Files files;
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
  REQUIRE(poold.await_log("scheduler_attends"));
  CHECK(scheduler.await([](const pool::NodeReport& report) { return !report.leaving(); }));
  CHECK(poold.stop() == 0);
  CHECK(scheduler.await(
      [](const pool::NodeReport& report) { return report.leaving() && report.now_ms() > 0; }));
}

TEST_CASE("leases in use are reported and ended as ordered and their end is acknowledged") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const Files files;
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
  REQUIRE(scheduler.await_report());
  const std::string gpu = scheduler.inventory().gpus(1).uuid();
  CHECK(scheduler.inventory().addresses(0) == poold.url());
  lease::Lease lease = maker.lease({gpu});
  const lease::Lease other = maker.lease({gpu});
  RawClient one(poold.endpoint()), two(poold.endpoint()), bystander(poold.endpoint());
  REQUIRE(one.open(with_lease(maker.token(lease))).devices.size() == 1);
  const std::string first = maker.token(lease);
  lease.set_serial(2);
  two.open(with_lease(maker.token(lease)));
  bystander.open(with_lease(maker.token(other)));
  CHECK(scheduler.await_sessions(lease.id(), 2));
  CHECK(scheduler.await([&](const pool::NodeReport& report) {
    for (const pool::LeaseUse& use : report.leases()) {
      if (use.lease() == lease.id()) return use.serial() == 2;
    }
    return false;
  }));
  const auto replayed = answer(poold, first);
  CHECK(replayed.status == hello::Status::denied);
  CHECK(has(replayed.reason, "renewed"));
  LeaseMaker stranger;
  CHECK(has(answer(poold, stranger.token(stranger.lease({gpu}))).reason, "is not configured"));
  lease::Lease misplaced = maker.lease({gpu});
  misplaced.set_node("gpu-2");
  CHECK(has(answer(poold, maker.token(misplaced)).reason, "'gpu-2'"));

  two.close();
  CHECK(scheduler.await_sessions(lease.id(), 1));
  scheduler.end(lease.id(), "preempted by tenant chemistry");
  const auto said = one.await_end();
  REQUIRE(said);
  CHECK(has(*said, "the lease has ended: preempted by tenant chemistry"));
  CHECK(scheduler.await_end(lease.id()));
  CHECK(scheduler.await_sessions(lease.id(), -1));
  CHECK(scheduler.await_sessions(other.id(), 1));
  CHECK(has(answer(poold, maker.token(lease)).reason, "the lease has ended"));
  bystander.ping();
  CHECK(poold.await_log("lease_gone"));
  CHECK(poold.stop() == 0);
}

TEST_CASE("a restarted poold refuses leases of its previous run") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const Files files;
  lease::Lease lease;
  {
    PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
    REQUIRE(scheduler.await_report());
    lease = maker.lease({scheduler.inventory().gpus(0).uuid()});
    lease.set_boot(scheduler.inventory().boot());
    CHECK(answer(poold, maker.token(lease)).status == hello::Status::ok);
  }
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
  CHECK(has(answer(poold, maker.token(lease)).reason, "was restarted"));
}

TEST_CASE("sessions of an ended lease have the grace period of the order") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const Files files;
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
  REQUIRE(scheduler.await_report());
  const lease::Lease lease = maker.lease({scheduler.inventory().gpus(0).uuid()});
  RawClient client(poold.endpoint());
  client.open(with_lease(maker.token(lease)));
  scheduler.end(lease.id(), "drained", 3'600'000);
  REQUIRE(poold.await_log("lease_ends"));
  CHECK(has(answer(poold, maker.token(lease)).reason, "the lease has ended: drained"));
  client.ping();
  client.close();  // ends its session within the grace period
  CHECK(scheduler.await_end(lease.id()));
  CHECK(poold.stop() == 0);
}

TEST_CASE("sessions run without a scheduler which gets the state when it is back") {
  LeaseMaker maker;
  const Files files;
  auto scheduler = std::make_unique<FakeScheduler>();
  const std::string address = scheduler->address();
  PooldProcess poold(kDevice, attending(maker, files, {address}));
  REQUIRE(scheduler->await_report());
  const lease::Lease lease = maker.lease({scheduler->inventory().gpus(0).uuid()});
  const std::string boot = scheduler->inventory().boot();
  RawClient before(poold.endpoint());
  before.open(with_lease(maker.token(lease)));
  REQUIRE(scheduler->await_sessions(lease.id(), 1));
  scheduler.reset();
  REQUIRE(poold.await_log("scheduler_away"));
  CHECK(has(health(poold), "not registered with a scheduler"));
  before.ping();
  RawClient during(poold.endpoint());
  during.open(with_lease(maker.token(lease)));
  during.ping();
  scheduler = std::make_unique<FakeScheduler>(FakeScheduler::Settings{.address = address});
  CHECK(scheduler->await_sessions(lease.id(), 2));
  CHECK(scheduler->inventory().boot() == boot);
  CHECK(poold.await_log("scheduler_attends", 2));
  CHECK(occurrences(poold.log(), "scheduler_away") == 1);
  before.ping();
  CHECK(poold.stop() == 0);
}

TEST_CASE("a token file that cannot be read delays the registration and no client") {
  LeaseMaker maker;
  const Files files;
  auto scheduler = std::make_unique<FakeScheduler>();
  const std::string address = scheduler->address();
  PooldProcess poold(kDevice, attending(maker, files, {address}, {"--metrics", "127.0.0.1:0"}));
  REQUIRE(scheduler->await_report());
  const std::string token = maker.token(maker.lease({scheduler->inventory().gpus(0).uuid()}));
  REQUIRE(::unlink(files.token.c_str()) == 0);
  REQUIRE(::mkfifo(files.token.c_str(), 0600) == 0);
  scheduler.reset();
  int writer = -1;
  REQUIRE(eventually([&] {
    writer = ::open(files.token.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return writer >= 0;  // poold has opened the file, and now waits for its content
  }));
  auto answered = std::async(std::launch::async, [&] {
    RawClient client(poold.endpoint());
    client.open(with_lease(token));
    client.ping();
    return http_get(metrics_port(poold.log()), "/healthz");
  });
  const bool in_time = answered.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  scheduler = std::make_unique<FakeScheduler>(FakeScheduler::Settings{.address = address});
  const std::string content = "node-secret\n";
  CHECK(::write(writer, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  ::close(writer);
  CHECK(in_time);
  try {
    CHECK(has(answered.get(), " 200 "));
  } catch (const std::runtime_error& failure) {  // RawClient's patience
    FAIL(failure.what());
  }
  CHECK(scheduler->await_report());
  CHECK(scheduler->authorization() == "Bearer node-secret");
  CHECK(poold.stop() == 0);
}

TEST_CASE("the leading scheduler is found") {
  LeaseMaker maker;
  const Files files;
  FakeScheduler leader;
  FakeScheduler follower({.leader = leader.address()});
  PooldProcess poold(kDevice, attending(maker, files, {"127.0.0.1:1", follower.address()}));
  CHECK(leader.await_report());
  CHECK(poold.await_log("scheduler=" + leader.address()));
  CHECK(poold.stop() == 0);
}

TEST_CASE("fences and clock skew are logged") {
  FakeScheduler scheduler({.clock_ms = 60'000});
  LeaseMaker maker;
  const Files files;
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}));
  REQUIRE(poold.await_log("clocks_differ"));
  CHECK(occurrences(poold.log(), "clocks_differ") == 1);
  scheduler.fence("it reports GPUs that come and go");
  CHECK(poold.await_log("node_fenced"));
  const std::string told = health(poold);
  CHECK(has(told, "fenced: it reports GPUs that come and go"));
  CHECK((has(told, "is 60 s ahead") || has(told, "is 59 s ahead")));
  scheduler.fence("");
  CHECK(poold.await_log("node_not_fenced"));
}

TEST_CASE("poold connects over TLS and only to a scheduler with a valid certificate") {
  LeaseMaker maker;
  const Files files;
  const Authority authority("pool"), stranger("stranger");
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto signed_by = [&](const Authority& by) {
    const auto pair = by.sign("scheduler", "IP:127.0.0.1");
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({read(pair.key), read(pair.certificate)});
    return grpc::SslServerCredentials(options);
  };
  FakeScheduler good({.credentials = signed_by(authority)}), bad({.credentials = signed_by(stranger)});
  PooldProcess poold(kDevice, attending(maker, files, {bad.address(), good.address()},
                                        {"--pool-ca", authority.certificate()}));
  CHECK(good.await_report());
  CHECK(bad.streams() == 0);
  CHECK(poold.stop() == 0);
}

TEST_CASE("renewed CA certificates are trusted on the next connection") {
  LeaseMaker maker;
  const Files files;
  const TemporaryFolder folder;
  const Authority before("before"), after("after");
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto pair = after.sign("scheduler", "IP:127.0.0.1");
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({read(pair.key), read(pair.certificate)});
  FakeScheduler scheduler({.credentials = grpc::SslServerCredentials(options)});
  const std::string ca = folder.write("ca.pem", read(before.certificate()));
  PooldProcess poold(kDevice, attending(maker, files, {scheduler.address()}, {"--pool-ca", ca}));
  CHECK(poold.await_log("scheduler_away"));
  CHECK(scheduler.streams() == 0);
  folder.write("ca.pem", read(after.certificate()));
  CHECK(scheduler.await_report());
}

TEST_CASE("invalid settings of the pool are refused at start") {
  LeaseMaker maker;
  const Files files;
  const auto why = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {program_path("poold"), "--listen", "tcp://127.0.0.1:0"});
    const Finished finished = run_to_end(options);
    CHECK(finished.status != 0);
    return finished.output;
  };
  CHECK(has(why({"--pool-scheduler", "a:1", "--pool-token-file", files.token}), "public_keys"));
  CHECK(has(why({"--pool-scheduler", "a", "--pool-public-key", maker.public_key_file(), "--pool-token-file",
                 files.token}),
            "HOST:PORT"));
  CHECK(has(why({"--pool-name", "a b", "--pool-public-key", maker.public_key_file()}), "letters, digits"));
  CHECK(has(why({"--pool-public-key", files.token}), "not an Ed25519 public key"));
  std::filesystem::permissions(files.token, std::filesystem::perms(0644));
  const std::string read_by_all = why({"--pool-scheduler", "127.0.0.1:1", "--pool-public-key",
                                       maker.public_key_file(), "--pool-token-file", files.token});
  CHECK(has(read_by_all, "refusing to use '" + files.token + "': other users can read it; run chmod 600"));
  const std::string forged = files.folder.write("forged.pem", "");
  std::filesystem::copy_file(maker.public_key_file(), forged,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::permissions(forged, std::filesystem::perms(0646));
  CHECK(
      has(why({"--pool-public-key", forged}), "refusing to use '" + forged + "': other users can write it"));
  const std::string key = files.folder.path() / "key.pem";
  REQUIRE(lease::SigningKey::make()->write(key));
  CHECK(has(why({"--pool-scheduler", "a:1", "--pool-public-key", key}), "it is the private key"));
  CHECK(has(why({"--pool-scheduler", "a:1", "--pool-public-key", key}),
            "`pool-scheduler --key " + key + " --print-public-key > FILE`"));
  CHECK(has(why({"--config", files.folder.write("bad.toml", "[pool]\nname = 'a'\ncolour = 'red'\n")}),
            "unknown key"));
  CHECK(has(why({"--config", files.folder.write("alone.toml", "[pool]\nname = 'a'\n")}),
            "[pool] schedulers: missing"));
  CHECK(has(why({"--config", files.folder.write("worse.toml", "[pool]\ncpu_milli = -1\n")}), "cpu_milli"));
  CHECK(has(why({"--pool-host-memory", "64"}), "--pool-host-memory: '64' is 64 bytes: did you mean 64GiB?"));
  CHECK(has(why({"--config", files.folder.write("small.toml", "[pool]\nhost_memory = 64\n")}),
            "host_memory: '64' is 64 bytes: did you mean 64GiB?"));
}

TEST_CASE("the configuration file names the pool, and its keys are read again") {
  LeaseMaker maker, next;
  const Files files;
  FakeScheduler scheduler;
  const auto config = [&](const std::string& key) {
    return files.folder.write("poold.toml", "[pool]\nname = 'gpu-1'\nschedulers = ['" + scheduler.address() +
                                                "']\ninsecure = true\ntoken_file = '" + files.token +
                                                "'\npublic_keys = ['" + key + "']\nhost_memory = '1GiB'\n");
  };
  PooldProcess poold(kDevice, {"--config", config(maker.public_key_file())});
  REQUIRE(scheduler.await_report());
  CHECK(scheduler.inventory().host_memory_bytes() == 1u << 30);
  const std::string gpu = scheduler.inventory().gpus(0).uuid();
  CHECK(answer(poold, maker.token(maker.lease({gpu}))).status == hello::Status::ok);
  CHECK(answer(poold, next.token(next.lease({gpu}))).status == hello::Status::denied);
  config(next.public_key_file());
  poold.process().signal(SIGHUP);
  REQUIRE(poold.await_log("reloaded"));
  CHECK(answer(poold, next.token(next.lease({gpu}))).status == hello::Status::ok);
  CHECK(answer(poold, maker.token(maker.lease({gpu}))).status == hello::Status::denied);
}
