// Programs whose cable is pulled while they copy: their sessions go on over rdma. Runs in the guest.
#include "protocol/peers/proof.h"
#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool.h"
#include "tests/rdma/cable.h"
#include "tests/support/catch.h"
#include "tests/support/end_file.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::vector<std::string> kAtCable{"--listen",   std::string("tcp://") + kNear + ":0",
                                        "--insecure", "--rdma-timeout",
                                        "16",         "--resume-timeout",
                                        "120"};
const Environment kDevice{{"SOFTGPU_MEMORY", "128MiB"}};

transport::Endpoint endpoint_of(Pool& pool) {
  return {"rdma", kNear, pool.poold().port()};
}

RawClient rdma_client(Pool& pool) {
  transport::Options options;
  options.rdma.use = transport::RdmaOptions::Use::always;
  return RawClient(endpoint_of(pool), options);
}

hello::Hello rdma_hello(bool can_resume_rdma) {
  hello::Hello hello = test_hello();
  hello.rdma = static_cast<uint32_t>(transport::RdmaOptions::Use::always);
  hello.can_resume = true;
  hello.can_resume_rdma = can_resume_rdma;
  return hello;
}

}  // namespace

TEST_CASE("a program counts on after its cable was pulled in the middle of copies") {
  Pool pool(kDevice, kAtCable);
  // One connection, so that the log has one line for each break.
  const EndFile file;
  Process app({driver_app(), "counting", "1000000", "3000000", file.end},
              pool.through({{"GPUPOOL", endpoint_of(pool).text()},
                            {"GPUPOOL_RDMA_TIMEOUT", "16"},
                            {"GPUPOOL_BULK_CONNECTIONS", "0"}}));
  REQUIRE(app.await_output("working", kLongPatience));
  for (size_t times = 1; times <= 3; ++times) {
    PulledCable cable;
    REQUIRE(pool.poold().await_log("client_connection_broken", times));
    cable.plug_in();
    REQUIRE(pool.poold().await_log("session_resumed", times));
  }
  file.end_program();
  expect_success(app, "counted to");
}

TEST_CASE("a client that returns without rdma is refused with the reason") {
  Pool pool(kDevice, kAtCable);
  RawClient client = rdma_client(pool);
  const auto reply = client.open(rdma_hello(true));
  REQUIRE(reply.resume_timeout_ms != 0);
  REQUIRE(client.connection().direct_memory() != nullptr);
  client.ping();  // the session runs
  hello::Hello back = test_hello();
  back.session_id = reply.session_id;
  back.resume_attempt = 1;
  const auto proof = peers::prove_resume(reply.resume_key, 0, 1, 0);
  back.resume_proof.assign(proof.begin(), proof.end());
  RawClient other({"tcp", kNear, pool.poold().port()});
  other.send_hello(back);
  const auto answer = other.receive_reply();
  CHECK(answer.status == hello::Status::denied);
  CHECK(answer.reason.find("the session is over rdma") != std::string::npos);
}

TEST_CASE("a session over rdma of a client that cannot resume it ends with its connection") {
  Pool pool(kDevice, kAtCable);
  RawClient client = rdma_client(pool);
  CHECK(client.open(rdma_hello(false)).resume_timeout_ms == 0);
  client.close();
  CHECK(pool.poold().await_log("session_ended"));
}
