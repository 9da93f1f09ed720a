// Tests of the callers of a real pool-scheduler: their tokens, and limits on what they may send.
#include <signal.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <fstream>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

const std::string kTenantToken(64, 'a'), kNodeToken(64, 'b'), kOperatorToken(64, 'c'),
    kOtherTenantToken(64, 'd');

std::string hash(const std::string& token) {
  const Finished done = run_to_end({"sh", "-c", "printf %s " + token + " | sha256sum | cut -c1-64"});
  return done.output.substr(0, 64);
}

// Returns a configuration with a tenant, a node and an operator that have the tokens above.
std::string with_tokens() {
  return "[[tenant]]\nname = \"a\"\ntokens = [\"sha256:" + hash(kTenantToken) +
         "\"]\nquota = { gpus = 4, memory = \"1TiB\", weight = 2 }\n" +
         "[[node]]\nname = \"n0\"\ntokens = [\"sha256:" + hash(kNodeToken) + "\"]\n" +
         "[[operator]]\nname = \"root\"\ntokens = [\"sha256:" + hash(kOperatorToken) + "\"]\n";
}

asio::ip::tcp::endpoint endpoint_of(const SchedulerProcess& scheduler) {
  const std::string address = scheduler.address();
  return {asio::ip::make_address("127.0.0.1"),
          static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)))};
}

}  // namespace

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

TEST_CASE("a tenant cannot resume another tenant's lease, even with the lease's secret") {
  TemporaryFolder folder;
  SchedulerProcess scheduler(
      {"--config", folder.write("pool.toml", with_tokens() + "[[tenant]]\nname = \"b\"\ntokens = [\"sha256:" +
                                                 hash(kOtherTenantToken) + "\"]\nquota = { gpus = 4 }\n")});
  const auto channel = connect(scheduler.address());
  SimulatedPoold node(channel, {"n0", 0, 1, kNodeToken});
  node.send_heartbeat();
  REQUIRE(eventually([&] { return node.is_registered(); }));
  auto holder = std::make_unique<LeaseClient>(channel, request_call(1, 1000), kTenantToken);
  const auto granted = holder->granted();
  REQUIRE(granted);
  LeaseClient thief(channel, resume_call(*granted), kOtherTenantToken);
  const auto ended = thief.ended();  // as if there were no lease of that number
  REQUIRE(ended);
  CHECK(ended->why() == pool::Ended::EXPIRED);
  CHECK(LeaseClient(channel, resume_call(*granted), kOperatorToken).status().error_code() ==
        grpc::StatusCode::PERMISSION_DENIED);
  holder.reset();  // its owner still has it
  const auto again = LeaseClient(channel, resume_call(*granted), kTenantToken).granted();
  REQUIRE(again);
  CHECK(again->lease() == granted->lease());
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

// All at the same time: the scheduler waits 10 s.
TEST_CASE("calls without a first message are ended") {
  SchedulerProcess scheduler;
  const auto channel = connect(scheduler.address());
  const auto leases = pool::Leases::NewStub(channel);
  const auto nodes = pool::Nodes::NewStub(channel);
  grpc::ClientContext lease_context, node_context;
  for (grpc::ClientContext* context : {&lease_context, &node_context})
    context->set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
  RawGrpc admin = RawGrpc::connect(endpoint_of(scheduler).port());
  for (const char* const method : {"GetPool", "SetPolicy", "Watch"})
    admin.call("/gpupool.pool.PoolAdmin/" + std::string(method), UINT32_MAX);
  admin.send(1);
  const auto lease = leases->Acquire(&lease_context);
  const auto node = nodes->Attend(&node_context);
  pool::AcquireEvent event;
  CHECK(!lease->Read(&event));
  const grpc::Status of_lease = lease->Finish();
  CHECK(of_lease.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  pool::NodeOrders orders;
  CHECK(!node->Read(&orders));
  const grpc::Status of_node = node->Finish();
  CHECK(of_node.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  for (const grpc::Status& status : {of_lease, of_node})  // by the scheduler, and not by this client
    CHECK(status.error_message() != "Deadline Exceeded");
  CHECK(eventually([&] {
    admin.send(1);
    return admin.refused();
  }));
}
