// Tests of a real pool-scheduler with simulated poolds and lease clients.
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "protocol/lease/token.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/contains.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

const std::string kTenantToken(64, 'a'), kNodeToken(64, 'b'), kOperatorToken(64, 'c');

// Returns a configuration with a tenant, a node and an operator that have the tokens above.
std::string with_tokens() {
  const auto hash = [](const std::string& token) {
    const Finished done = run_to_end({"sh", "-c", "printf %s " + token + " | sha256sum | cut -c1-64"});
    return done.output.substr(0, 64);
  };
  return "[[tenant]]\nname = \"a\"\ntokens = [\"sha256:" + hash(kTenantToken) +
         "\"]\nquota = { gpus = 4, memory = \"1TiB\", weight = 2 }\n" +
         "[[node]]\nname = \"n0\"\ntokens = [\"sha256:" + hash(kNodeToken) + "\"]\n" +
         "[[operator]]\nname = \"root\"\ntokens = [\"sha256:" + hash(kOperatorToken) + "\"]\n";
}

lease::PublicKey public_key(const SchedulerProcess& scheduler) {
  return *lease::PublicKey::read(scheduler.public_key_file());
}

asio::ip::tcp::endpoint endpoint_of(const SchedulerProcess& scheduler) {
  const std::string address = scheduler.address();
  return {asio::ip::make_address("127.0.0.1"),
          static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)))};
}

std::chrono::milliseconds time_of_day() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace

TEST_CASE("a lease is granted with valid node tokens and released") {
  SchedulerProcess scheduler;
  Usage usage;
  SimulatedPoolds poolds(scheduler.address(), 2, 2, &usage);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient holder(channel, request_call(3, 1000));
  const auto granted = holder.granted();
  REQUIRE(granted);
  CHECK(granted->lease().size() == 16);
  CHECK(granted->secret().size() == 32);
  CHECK(granted->hold_ms() == 30'000);
  int gpus = 0;
  const std::vector<lease::PublicKey> keys{public_key(scheduler)};
  for (const auto& server : granted->servers()) {
    CHECK(server.address() == "tcp://" + server.node() + ":9700");
    const auto lease = lease::check_lease(server.token(), keys, server.node(), time_of_day());
    REQUIRE(lease);
    CHECK(lease->tenant() == "default");
    CHECK(lease->boot() == "pretended-boot-a");
    CHECK(lease->expires_ms() == granted->expires_ms());
    gpus += lease->shares_size();
  }
  CHECK(gpus == 3);
  LeaseClient waits(channel, request_call(2, 1000));
  const auto queued = waits.queued(1);
  REQUIRE(queued);
  CHECK(queued->waiting() == 1);
  CHECK(queued->why().starts_with("waits for 2 GPUs: 1 of 4 suitable GPUs is free"));
  holder.release();
  CHECK(holder.ended()->why() == pool::Ended::RELEASED);
  CHECK(holder.status().ok());
  CHECK(waits.granted());
  CHECK(usage.double_grants().empty());
}

TEST_CASE("a cancelled request leaves the queue and its ticket keeps the place") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient first(channel, request_call(1, 1000));
  REQUIRE(first.granted());
  auto second = std::make_unique<LeaseClient>(channel, request_call(1, 1000));
  const auto told = second->queued(1);
  REQUIRE(told);
  LeaseClient third(channel, request_call(1, 1000));
  REQUIRE(third.queued(2));
  second->cut();
  REQUIRE(third.queued(1));
  // The second client returns with its ticket; the third one became the head meanwhile and stays the head.
  pool::AcquireCall again = request_call(1, 1000);
  again.mutable_request()->set_ticket(told->ticket());
  LeaseClient back(channel, again);
  REQUIRE(back.queued(2));
  LeaseClient fourth(channel, request_call(1, 1000));
  REQUIRE(fourth.queued(3));
  third.release();
  CHECK(third.ended()->why() == pool::Ended::RELEASED);
  first.release();
  CHECK(back.granted());
}

TEST_CASE("a disconnected client resumes its lease only with the lease's secret") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  auto holder = std::make_unique<LeaseClient>(channel, request_call(1, 1000));
  const auto granted = holder->granted();
  REQUIRE(granted);
  holder.reset();
  pool::AcquireCall forged = resume_call(*granted);
  forged.mutable_resume()->mutable_secret()->back() ^= 1;
  CHECK(LeaseClient(channel, forged).status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  LeaseClient back(channel, resume_call(*granted));
  const auto again = back.granted();
  REQUIRE(again);
  CHECK(again->lease() == granted->lease());
  CHECK(again->servers(0).token() != granted->servers(0).token());
}

TEST_CASE("an invalid request is refused with a reason") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  CHECK(LeaseClient(channel, request_call(0, 1000)).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  pool::AcquireCall release;
  release.mutable_release();
  CHECK(LeaseClient(channel, release).status().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(LeaseClient(channel, pool::AcquireCall()).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  pool::AcquireCall unknown = request_call(1, 1);
  unknown.mutable_request()->set_tenant("nobody");
  CHECK(LeaseClient(channel, unknown).status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  // Refused after the nodes have had ten seconds to register.
  const auto impossible = LeaseClient(channel, request_call(2, 1000)).status();
  CHECK(impossible.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(impossible.error_message() ==
        "cannot place 2 GPUs: at most 1 GPU fits; the pool has 1 GPU on 1 host: 1 x pretended 16.0 GiB");
}

TEST_CASE("each kind of token allows only the calls of its role") {
  TemporaryFolder folder;
  const std::string config = folder.write("pool.toml", with_tokens());
  SchedulerProcess scheduler({"--config", config});
  const auto channel = connect(scheduler.address());
  CHECK(LeaseClient(channel, request_call(1, 1000)).status().error_code() ==
        grpc::StatusCode::UNAUTHENTICATED);
  CHECK(LeaseClient(channel, request_call(1, 1000), std::string(64, 'x')).status().error_code() ==
        grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status of_node = LeaseClient(channel, request_call(1, 1000), kNodeToken).status();
  CHECK(of_node.error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(of_node.error_message() ==
        "this token is a node's: use a tenant's token (pool-run --token-file, GPUPOOL_TOKEN_FILE); create "
        "one with pool-scheduler --make-token "
        "and put its hash into [[tenant]] of the scheduler's configuration");
  // The request exceeds the tenant's quota.
  CHECK(LeaseClient(channel, request_call(5, 1000), kTenantToken).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  SimulatedPoold wrong(connect(scheduler.address()), {"n1", 1, 1, kNodeToken});
  wrong.send_heartbeat();
  CHECK(eventually(
      [&] { return wrong.last_error().starts_with("this token belongs to node 'n0', not to 'n1': "); }));
  SimulatedPoold right(connect(scheduler.address()), {"n0", 0, 1, kNodeToken});
  right.send_heartbeat();
  CHECK(eventually([&] { return right.is_registered(); }));
  CHECK(LeaseClient(channel, request_call(1, 1000), kTenantToken).granted());

  SECTION("read again on SIGHUP; a mistake changes nothing") {
    std::ofstream(config) << "[[tenant]]\nname = 7\n";
    scheduler.process().signal(SIGHUP);
    CHECK(scheduler.await_log("reload_failed"));
    CHECK(LeaseClient(channel, request_call(1, 500), kTenantToken).queued(1));
    std::string other = with_tokens();
    other.replace(other.find("name = \"a\""), 10, "name = \"z\"");
    std::ofstream(config) << other;
    scheduler.process().signal(SIGHUP);
    CHECK(scheduler.await_log(" reloaded "));
    pool::AcquireCall call = request_call(1, 500);
    call.mutable_request()->set_tenant("z");
    CHECK(LeaseClient(channel, call, kTenantToken).granted());  // the lease of tenant "a" has ended
  }
}

TEST_CASE("a token is checked before a message is read") {
  TemporaryFolder folder;
  SchedulerProcess scheduler({"--config", folder.write("pool.toml", with_tokens())});
  const auto channel = connect(scheduler.address());
  const auto holders = pool::Leases::NewStub(channel);
  const auto nodes = pool::Nodes::NewStub(channel);
  for (const std::string& token : {std::string(64, 'x'), kOperatorToken, std::string()}) {
    grpc::ClientContext holder_context, node_context;
    for (grpc::ClientContext* context : {&holder_context, &node_context}) {
      context->set_deadline(std::chrono::system_clock::now() + kPatience);
      if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    }
    const auto expected =
        token == kOperatorToken ? grpc::StatusCode::PERMISSION_DENIED : grpc::StatusCode::UNAUTHENTICATED;
    const auto holder = holders->Acquire(&holder_context);  // without sending a message
    pool::AcquireEvent event;
    CHECK(!holder->Read(&event));
    CHECK(holder->Finish().error_code() == expected);
    const auto node = nodes->Attend(&node_context);
    pool::NodeOrders orders;
    CHECK(!node->Read(&orders));
    CHECK(node->Finish().error_code() == expected);
  }
}

TEST_CASE("a message that is too large ends its call alone") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  pool::AcquireCall large = request_call(1, 1000);
  large.mutable_request()->set_program(std::string(2 << 20, 'p'));
  CHECK(LeaseClient(channel, large).status().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(LeaseClient(channel, request_call(1, 1000)).granted());
}

TEST_CASE("a connection has a bounded number of streams") {
  SchedulerProcess scheduler;
  asio::io_context context;
  asio::ip::tcp::socket speaks(context);
  speaks.connect(endpoint_of(scheduler));
  // Send HTTP/2's preface and empty SETTINGS. The server's SETTINGS frame has a header of 9 bytes and 6 bytes
  // per setting.
  asio::write(speaks, asio::buffer(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") +
                                   std::string("\0\0\0\4\0\0\0\0\0", 9)));
  const auto receive = [&](size_t size) {
    std::vector<unsigned char> bytes(size);
    asio::read(speaks, asio::buffer(bytes));
    return bytes;
  };
  const auto head = receive(9);
  REQUIRE(head[3] == 4);  // SETTINGS
  const auto settings = receive(head[0] << 16 | head[1] << 8 | head[2]);
  constexpr unsigned kMaxConcurrentStreams = 3;
  uint32_t streams = UINT32_MAX;
  for (size_t at = 0; at + 6 <= settings.size(); at += 6) {
    if ((settings[at] << 8 | settings[at + 1]) != kMaxConcurrentStreams) continue;
    streams =
        uint32_t{settings[at + 2]} << 24 | settings[at + 3] << 16 | settings[at + 4] << 8 | settings[at + 5];
  }
  CHECK(streams <= 4096);
}

TEST_CASE("a connection that never finishes its TLS handshake is closed") {
  const Authority authority("authority");
  const Authority::Files files = authority.sign("scheduler", "IP:127.0.0.1");
  SchedulerProcess scheduler({"--tls-certificate", files.certificate, "--tls-key", files.key});
  asio::io_context context;
  asio::ip::tcp::socket silent(context);
  silent.connect(endpoint_of(scheduler));
  bool ended = false;
  char byte = 0;
  silent.async_read_some(asio::buffer(&byte, 1), [&](const asio::error_code&, size_t) { ended = true; });
  context.run_for(kPatience);
  CHECK(ended);
}

TEST_CASE("failed authentications are counted and logged with rate limiting") {
  TemporaryFolder folder;
  SchedulerProcess scheduler(
      {"--config", folder.write("pool.toml", with_tokens()), "--metrics", "127.0.0.1:0"});
  REQUIRE(scheduler.await_log(" leads"));
  const auto channel = connect(scheduler.address());
  constexpr size_t kStreams = 40, kCalls = 20;
  for (size_t i = 0; i < kStreams; ++i) {
    LeaseClient wrong(channel, request_call(1, 1000), std::string(64, 'x'));
    CHECK(wrong.status().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  }
  const auto admin = pool::PoolAdmin::NewStub(channel);
  for (size_t i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    pool::PoolState state;
    CHECK(admin->GetPool(&context, pool::GetPoolRequest(), &state).error_code() ==
          grpc::StatusCode::UNAUTHENTICATED);
  }
  const std::string counted =
      "gpupool_pool_callers_refused_total " + std::to_string(kStreams + kCalls) + "\n";
  CHECK(http_get(metrics_port(scheduler.log()), "/metrics").find(counted) != std::string::npos);
  const auto sum = [](const std::string& text, const std::string& line, const std::string& summary,
                      const std::string& key) {
    size_t all = occurrences(text, line);
    for (size_t at = 0; (at = text.find(summary, at)) != std::string::npos;) {
      at = text.find(key, at) + key.size();
      all += std::stoul(text.substr(at));
    }
    return all;
  };
  const auto audit = [&] {
    std::ifstream file(scheduler.audit_file());
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(eventually([&] {
    return sum(audit(), "\"caller_refused\"", "\"callers_refused_too\"", "\"count\":") == kStreams + kCalls;
  }));
  CHECK(eventually([&] {
    return sum(scheduler.log(), " caller_refused ", " callers_refused_too ", "count=") == kStreams + kCalls;
  }));
  CHECK(occurrences(audit(), "\"caller_refused\"") < kStreams + kCalls);
  CHECK(audit().find("\"peer\":\"127.0.0.1\"") != std::string::npos);
}

TEST_CASE("a scheduler killed at random loses no lease and grants nothing twice") {
  SchedulerProcess scheduler;
  Usage usage;
  SimulatedPoolds poolds(scheduler.address(), 100, 4, &usage, 100ms);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());

  std::vector<std::shared_ptr<const pool::Granted>> held;
  for (int round = 0; round < 5; ++round) {
    // Some clients resume their leases, others are new; meanwhile the scheduler is killed.
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const pool::Granted>> granted;  // by lease
    const auto heard = [&](const pool::AcquireEvent& event) {
      if (!event.has_granted()) return;
      usage.granted(event.granted());
      const std::lock_guard lock(mutex);
      granted[event.granted().lease()] = std::make_shared<pool::Granted>(event.granted());
    };
    {
      // gRPC waits before it reconnects, and calls fail until then.
      REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
      std::vector<std::unique_ptr<LeaseClient>> acquisitions;
      for (const auto& lease : held)
        acquisitions.push_back(std::make_unique<LeaseClient>(channel, resume_call(*lease), "", heard));
      for (const auto& one : acquisitions) {
        if (!one->granted()) FAIL("a lease was lost: " << one->status().error_message());
      }
      for (int i = 0; i < 60; ++i)
        acquisitions.push_back(std::make_unique<LeaseClient>(
            channel, request_call(i % 7 == 0 ? 3 : 1, i % 2 ? 1000 : 300), "", heard));
      for (size_t i = 0; i < held.size(); i += 3) acquisitions[i]->release();
      // A new leader first waits for returning clients.
      if (round % 2 == 0)
        CHECK(eventually([&] {
          const std::lock_guard lock(mutex);
          return granted.size() > held.size();
        }));
      std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
      scheduler.kill();
      for (size_t i = 0; i < held.size(); i += 3) {
        const std::lock_guard lock(mutex);
        granted.erase(held[i]->lease());  // may have ended
      }
    }
    for (const auto& lease : held) {
      const std::lock_guard lock(mutex);
      if (&lease - held.data() != 0 && (&lease - held.data()) % 3 != 0)
        CHECK(granted.contains(lease->lease()));
    }
    held.clear();
    for (auto& [id, lease] : granted) held.push_back(lease);
    scheduler.start();
    REQUIRE(poolds.await());
    CHECK(usage.double_grants().empty());
  }
  CHECK(held.size() > 20);
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
  for (const auto& lease : held) {
    LeaseClient last(channel, resume_call(*lease));
    REQUIRE(last.granted());
    last.release();
    CHECK(last.ended()->why() == pool::Ended::RELEASED);
  }
  for (const auto& lease : held) {
    for (const auto& server : lease->servers()) {
      CHECK(
          eventually([&] { return poolds[std::stoul(server.node().substr(1))].has_ended(lease->lease()); }));
    }
  }
  CHECK(usage.double_grants().empty());
}

TEST_CASE("long names of programs and hosts are cut, also for the ticket") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  pool::AcquireCall call = request_call(1, 1000);
  call.mutable_request()->set_program(std::string(100'000, 'p'));
  call.mutable_request()->set_host(std::string(100'000, 'h'));
  LeaseClient holder(channel, call);
  REQUIRE(holder.granted());
  auto second = std::make_unique<LeaseClient>(channel, call);
  const auto told = second->queued(1);
  REQUIRE(told);
  LeaseClient third(channel, call);
  REQUIRE(third.queued(2));
  second->cut();
  REQUIRE(third.queued(1));
  call.mutable_request()->set_ticket(told->ticket());
  LeaseClient back(channel, call);
  REQUIRE(back.queued(2));
  LeaseClient fourth(channel, request_call(1, 1000));
  REQUIRE(fourth.queued(3));
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  for (const char c : {'p', 'h'}) {
    CHECK(lines.find(std::string(256, c)) != std::string::npos);
    CHECK(lines.find(std::string(257, c)) == std::string::npos);
  }
}

TEST_CASE("a stream without a first message is ended") {
  SchedulerProcess scheduler;
  const auto stub = pool::Leases::NewStub(connect(scheduler.address()));
  grpc::ClientContext context;
  const auto stream = stub->Acquire(&context);
  pool::AcquireEvent event;
  CHECK(!stream->Read(&event));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_CASE("a node may report any time of day and receives the scheduler's") {
  SchedulerProcess scheduler;
  const auto stub = pool::Nodes::NewStub(connect(scheduler.address()));
  grpc::ClientContext context;
  const auto stream = stub->Attend(&context);
  pool::NodeReport report;
  pool::Inventory& inventory = *report.mutable_inventory();
  inventory.set_node("n0");
  inventory.set_boot(std::string(16, 'b'));
  inventory.add_addresses("tcp://n0:9700");
  for (const int64_t time : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    report.set_now_ms(time);
    REQUIRE(stream->Write(report));
    report.clear_inventory();
    pool::NodeOrders orders;
    REQUIRE(stream->Read(&orders));
    CHECK(std::abs(orders.now_ms() - time_of_day().count()) < 60'000);
    CHECK(orders.fenced_because().empty());
  }
  CHECK(scheduler.await_log("clock_skew"));
  CHECK(scheduler.stop() == 0);
}

TEST_CASE("pool-scheduler starts and reports invalid options and exits cleanly") {
  TemporaryFolder folder;
  const std::string program = program_path("pool-scheduler");
  const std::string key = folder.path() / "key.pem", store = "sqlite:" + (folder.path() / "pool.db").string();
  CHECK(run_to_end({program, "--version"}).output.starts_with("pool-scheduler "));
  CHECK(run_to_end({program, "--help"}).status == 0);
  CHECK(run_to_end({program}).status == 2);
  const Finished unknown = run_to_end({program, "--nonsense"});
  CHECK(unknown.status == 2);
  CHECK(unknown.output == "pool-scheduler: unknown option '--nonsense'; see pool-scheduler --help\n");
  const Finished printed = run_to_end({program, "--key", key, "--print-public-key"});
  CHECK(printed.output.starts_with("pool-scheduler: created a new key in '" + key + "'"));
  struct stat info {};
  REQUIRE(::stat(key.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const Finished again = run_to_end({program, "--key", key, "--print-public-key"});
  CHECK(again.output.starts_with("-----BEGIN PUBLIC KEY-----"));
  CHECK(printed.output.ends_with("\n" + again.output));
  CHECK(printed.output.find("; start pool-scheduler with --key " + key + "\n") != std::string::npos);
  const std::string other = folder.path() / "other.pem",
                    config = folder.write("key.toml", "key = '" + other + "'\n");
  const Finished named = run_to_end({program, "--config", config, "--print-public-key"});
  CHECK(named.output.starts_with("pool-scheduler: created a new key in '" + other +
                                 "'; start pool-scheduler with --config " + config + ", which names it\n"));
  const Finished open = run_to_end({program, "--key", key, "--store", store, "--listen", "0.0.0.0:0"});
  CHECK(open.status == 1);
  CHECK(open.output.find("other machines can reach it") != std::string::npos);
  CHECK(run_to_end({program, "--key", key, "--store", "sqlite:/nowhere/x"}).status == 1);
  CHECK(run_to_end({program, "--key", key, "--store", store, "--listen", "nonsense"}).status == 1);
  CHECK(run_to_end({program, "--key", key, "--store", store, "--config",
                    folder.write("bad.toml", "[[tenant]]\nname = \"a b\"\n")})
            .status == 2);

  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(scheduler.address()), request_call(1, 1000));
  REQUIRE(holder.granted());
  CHECK(scheduler.stop() == 0);
  CHECK(holder.status().error_code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE(
    "pool-scheduler refuses keys that others can read, a configuration that they can write, and plaintext to "
    "another host's etcd") {
  TemporaryFolder folder;
  const Authority authority("authority");
  const Authority::Files files = authority.sign("scheduler", "IP:127.0.0.1");
  const std::string key = folder.path() / "key.pem",
                    sqlite = "sqlite:" + (folder.path() / "pool.db").string(),
                    config = folder.write("pool.toml", "");
  const auto permit = [](const std::string& file, unsigned mode) {
    std::filesystem::permissions(file, std::filesystem::perms(mode));
  };
  const auto refusal = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {program_path("pool-scheduler"), "--listen", "127.0.0.1:0", "--key", key});
    const Finished finished = run_to_end(options);
    CHECK((finished.status == 1 || finished.status == 2));
    return finished.output;
  };
  const std::string plaintext = refusal({"--store", "etcd://127.0.0.1:1,192.0.2.1:2379/pool"});
  CHECK_THAT(plaintext, Catch::Matchers::ContainsSubstring(
                            "refusing to use the store etcd://127.0.0.1:1,192.0.2.1:2379/pool: "
                            "192.0.2.1:2379 is on another host"));
  CHECK_THAT(plaintext, Catch::Matchers::ContainsSubstring("etcds://") &&
                            Catch::Matchers::ContainsSubstring("--insecure"));
  CHECK_FALSE(std::filesystem::exists(key));

  permit(files.key, 0644);
  const std::string unsafe = "refusing to use '" + files.key + "': other users can read it; run chmod 600";
  CHECK_THAT(refusal({"--store", sqlite, "--tls-certificate", files.certificate, "--tls-key", files.key}),
             Catch::Matchers::ContainsSubstring(unsafe));
  CHECK_THAT(refusal({"--store", "etcds://127.0.0.1:1", "--store-certificate", files.certificate,
                      "--store-key", files.key}),
             Catch::Matchers::ContainsSubstring(unsafe));
  permit(config, 0646);
  CHECK_THAT(
      refusal({"--store", sqlite, "--config", config}),
      Catch::Matchers::ContainsSubstring("refusing to use '" + config + "': other users can write it"));
}

TEST_CASE("a configuration error names the tenant and the valid form") {
  const std::pair<std::string, std::string> mistakes[] = {
      {"[tenant]\nname = 'a'", "tenant: must be an array of tables; write [[tenant]], not [tenant]"},
      {"[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'b'\nquota = { gpus = 'x' }",
       "tenant 'b': quota.gpus: must be a number of GPUs, like 2 or 0.5"},
      {"[[tenant]]\nname = 'b'\nquota = { highest_priority = 'urgent' }",
       "tenant 'b': quota.highest_priority: must be low, normal or high"},
      {"[[tenant]]\nname = 'b'\nquota = { compute = 50 }",
       "tenant 'b': quota.compute: use gpus instead: gpus = 0.5 is half of a GPU"},
      {"[[tenant]]\nname = 'b'\nquota = { highest-priorty = 'low' }", "; did you mean 'highest_priority'?"},
      {"[[tenant]]\nname = 'b'\nquota = { highest-priority = 'urgent' }",
       "tenant 'b': quota.highest-priority: must be low, normal or high"},
      {"[[tenant]]\nquota = { gpus = 0.5 }", "tenant at line 1: name: missing"},
      {"[[node]]\nname = 'n'\ntokens = 'x'", "node 'n': tokens: must be an array"},
      {"store = sqlite:pool.db", "; strings need quotes: store = \"sqlite:pool.db\""},
      {"[[tenant]]\nname = 'b'\nquota = { memory = '8' }",
       "tenant 'b': quota.memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'b'\nquota = { memory = 8 }",
       "tenant 'b': quota.memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'b'\nquota = { gpus = 2, memory = 8GiB }", "line 3: "},
      {"[[tenant]]\nname = 'b'\nquota = { gpus = 2, memory = 8GiB }",
       "; strings need quotes: memory = \"8GiB\""},
      {"[[tenant]]\nname = b", "; strings need quotes: name = \"b\""},
      {"policy = 'spread'", "policy: not a key of this file; change the policy with `pool-admin policy set"},
      {"listen = 'tcp://127.0.0.1:0'",
       "cannot listen on 'tcp://127.0.0.1:0': must be HOST:PORT, like 127.0.0.1:9800"},
      {"address = 'tcp://127.0.0.1:9800'", "--address: 'tcp://127.0.0.1:9800' is not HOST:PORT"},
  };
  TemporaryFolder folder;
  const std::string key = folder.path() / "key.pem", store = "sqlite:" + (folder.path() / "pool.db").string();
  for (const auto& [text, said] : mistakes) {
    const Finished refused = run_to_end({program_path("pool-scheduler"), "--key", key, "--store", store,
                                         "--config", folder.write("pool.toml", text + "\n")});
    INFO(text << "\n" << refused.output);
    CHECK(refused.status != 0);
    CHECK(refused.output.find(said) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(key));  // a rejected start creates no files
  }
}

TEST_CASE("a standby scheduler waits and names the leader") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  auto holder = std::make_unique<LeaseClient>(connect(scheduler.address()), request_call(1, 1000));
  const auto granted = holder->granted();
  REQUIRE(granted);
  const std::string port_file = scheduler.folder().path() / "second";
  Process second(
      {program_path("pool-scheduler"), "--listen", "127.0.0.1:0", "--port-file", port_file, "--key",
       scheduler.key_file(), "--store", "sqlite:" + (scheduler.folder().path() / "pool.db").string()},
      {});
  REQUIRE(eventually([&] { return std::filesystem::exists(port_file); }));
  int port = 0;
  std::ifstream(port_file) >> port;
  const auto channel = connect("127.0.0.1:" + std::to_string(port));
  CHECK(eventually([&] {
    LeaseClient refused(channel, request_call(1, 1));
    return refused.status().error_code() == grpc::StatusCode::UNAVAILABLE &&
           refused.leader() == scheduler.address();
  }));
  scheduler.kill();
  REQUIRE(second.await_output(" leads "));
  LeaseClient back(channel, resume_call(*granted));
  CHECK(back.granted());
  second.signal(SIGTERM);
  CHECK(second.wait() == 0);
}

TEST_CASE("leases are granted over TLS") {
  const Authority authority("pool");
  const auto files = authority.sign("scheduler", "IP:127.0.0.1");
  SchedulerProcess scheduler({"--tls-certificate", files.certificate, "--tls-key", files.key});
  std::ifstream file(authority.certificate());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
  const auto channel = grpc::CreateChannel(scheduler.address(), grpc::SslCredentials(options));
  CHECK(LeaseClient(channel, request_call(0, 1)).status().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(LeaseClient(connect(scheduler.address()), request_call(0, 1)).status().error_code() ==
        grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("a renewed certificate is loaded while running and an incomplete one is ignored") {
  const Authority authority("before"), renewed("after");
  const TemporaryFolder folder;
  const Authority::Files files{folder.path() / "scheduler.pem", folder.path() / "scheduler.key"};
  const auto install = [](const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  };
  const auto first = authority.sign("scheduler", "IP:127.0.0.1"),
             second = renewed.sign("scheduler", "IP:127.0.0.1");
  install(first.certificate, files.certificate);
  install(first.key, files.key);
  SchedulerProcess scheduler({"--tls-certificate", files.certificate, "--tls-key", files.key});
  const auto trusting = [&](const Authority& whom) {
    std::ifstream file(whom.certificate());
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(scheduler.address(), grpc::SslCredentials(options), arguments);
  };
  const auto answers = [&](const Authority& whom) {
    return LeaseClient(trusting(whom), request_call(0, 1)).status().error_code() ==
           grpc::StatusCode::INVALID_ARGUMENT;
  };
  const auto connected = trusting(authority);
  CHECK(LeaseClient(connected, request_call(0, 1)).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  install(second.certificate, files.certificate);
  CHECK(scheduler.await_log("certificate_not_renewed"));
  // gRPC polls its files every second.
  for (const auto end = std::chrono::steady_clock::now() + 3s; std::chrono::steady_clock::now() < end;)
    CHECK(answers(authority));
  std::filesystem::remove(files.key);
  CHECK(eventually([&] { return occurrences(scheduler.log(), "certificate_not_renewed") >= 2; }));
  CHECK(answers(authority));
  install(second.key, files.key);
  CHECK(scheduler.await_log("certificate_renewed"));
  CHECK(eventually([&] { return answers(renewed); }));
  CHECK_FALSE(answers(authority));
  // The connection from before the renewal still works.
  CHECK(LeaseClient(connected, request_call(0, 1)).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  install(first.certificate, files.certificate);
  install(first.key, files.key);
  scheduler.process().signal(SIGHUP);
  CHECK(eventually([&] { return answers(authority); }));
  CHECK(scheduler.stop() == 0);
}

TEST_CASE("metrics, health and the audit") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(scheduler.address()), request_call(1, 500));
  REQUIRE(holder.granted());
  REQUIRE(scheduler.await_log("url=http"));
  const uint16_t port = metrics_port(scheduler.log());
  const std::string page = http_get(port, "/metrics");
  for (const char* line :
       {"gpupool_pool_leader 1", "gpupool_pool_granted_total 1", "gpupool_pool_gpus_capacity 4",
        "gpupool_pool_gpus_leased 0.5", "gpupool_pool_nodes{condition=\"open\"} 2",
        "gpupool_pool_tenant_leases{tenant=\"default\"} 1"}) {
    INFO(page);
    CHECK(page.find(std::string("\n") + line + "\n") != std::string::npos);
  }
  CHECK(http_get(port, "/").find("<html") != std::string::npos);
  CHECK(http_get(port, "/pool.json").find("\"history\":[") != std::string::npos);
  CHECK(http_get(port, "/readyz").find("200 OK") != std::string::npos);
  holder.release();
  CHECK(holder.ended());
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  CHECK(lines.find("\"event\":\"lease_granted\"") != std::string::npos);
  CHECK(lines.find("\"event\":\"lease_ending\"") != std::string::npos);
}
