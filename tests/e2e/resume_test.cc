// Sessions whose connections break: programs compute as if nothing had happened, and nobody but the session's
// client continues it.
#include <signal.h>

#include <filesystem>

#include "common/token/token.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/commands.h"
#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/lease_maker.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::vector<std::string> kResumes{"--resume-timeout", "60"};

constexpr unsigned kShare = kSanitized ? 10 : 1;  // of the rounds

// Runs the scenario `counting` through a proxy that cuts.
void count_despite_cuts(Pool& pool, const std::string& scheme, uint64_t mean, unsigned rounds, uint64_t bytes,
                        Environment environment, unsigned least_cuts) {
  CuttingProxy proxy(pool.poold().endpoint(), mean, 1);
  environment["GPUPOOL"] = scheme + "://127.0.0.1:" + std::to_string(proxy.endpoint().port);
  const Finished app =
      run_patiently({driver_app(), "counting", std::to_string(rounds / kShare), std::to_string(bytes)},
                    pool.through(environment));
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(lines_with(app.output, "counted to").size() == 1);
  CHECK(proxy.cuts() >= least_cuts / kShare);
}

// A session that speaks the protocol by hand, and can resume.
struct Resumable {
  explicit Resumable(Pool& pool, std::string token_text = "")
      : endpoint(pool.poold().endpoint()), client(endpoint), token(std::move(token_text)) {
    hello::Hello hello = test_hello();
    hello.can_resume = true;
    hello.token = token;
    reply = client.open(hello);
  }
  hello::Hello hello_for(uint64_t attempt, uint64_t received) const {
    hello::Hello hello = test_hello();
    hello.token = token;
    hello.session_id = reply.session_id;
    hello.resume_attempt = attempt;
    hello.resume_received = received;
    const auto proof = peers::prove_resume(reply.resume_key, 0, attempt, received);
    hello.resume_proof.assign(proof.begin(), proof.end());
    return hello;
  }
  hello::HelloReply answer_to(const hello::Hello& hello) const {
    RawClient other(endpoint);
    other.send_hello(hello);
    return other.receive_reply();
  }
  transport::Endpoint endpoint;
  RawClient client;
  const std::string token;
  hello::HelloReply reply;
};

// A session that begins with the token `own` is not resumed with another one, whatever the client proves.
void expect_only_with(const std::string& own, const std::string& other, Pool& pool) {
  Resumable session(pool, own);
  session.client.ping();
  constexpr uint64_t kPong = sizeof(wire::MessageHeader);
  auto stolen = session.hello_for(1, kPong);
  stolen.token = other;
  CHECK(session.answer_to(stolen).status == hello::Status::denied);
  session.client.ping();  // undisturbed
  CHECK(session.answer_to(session.hello_for(1, 2 * kPong)).status == hello::Status::ok);
}

}  // namespace

TEST_CASE("connections cut at random bytes change no result") {
  Pool pool({}, kResumes);
  // Commands and small copies; then copies on bulk connections.
  count_despite_cuts(pool, "tcp", 20'000, 120, 4'000, {}, 100);
  count_despite_cuts(pool, "tcp", 3'000'000, 20, 4u << 20, {{"GPUPOOL_BULK_CONNECTIONS", "3"}}, 60);
  count_despite_cuts(pool, "tcp", 500'000, 10, 4u << 20, {{"GPUPOOL_BULK_CONNECTIONS", "0"}}, 100);
  count_despite_cuts(pool, "tcp", 3'000'000, 20, 4u << 20,
                     {{"GPUPOOL_BULK_CONNECTIONS", "2"}, {"GPUPOOL_COMPRESSION", "always"}}, 10);
}

TEST_CASE("encrypted connections cut at random bytes change no result") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Pool pool({}, {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate, "--tls-key",
                 files.key, "--resume-timeout", "60"});
  const Environment trusting{{"GPUPOOL_TLS_CA", authority.certificate()}, {"GPUPOOL_BULK_CONNECTIONS", "2"}};
  count_despite_cuts(pool, "tls", 30'000, 60, 4'000, trusting, 30);
  count_despite_cuts(pool, "tls", 3'000'000, 10, 4u << 20, trusting, 20);
}

TEST_CASE("a connection that goes silent is replaced") {
  Pool pool({}, kResumes);
  CuttingProxy proxy(pool.poold().endpoint(), 1, 1);
  proxy.stop_cutting();
  Process app({driver_app(), "counting", "1000000", "4000"},
              pool.through({{"GPUPOOL", proxy.endpoint().text()}, {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "600"}}));
  REQUIRE(app.await_output("working"));
  for (size_t times = 1; times <= 2; ++times) {
    proxy.freeze();
    REQUIRE(pool.poold().await_log("session_resumed", times));
  }
  ::kill(app.pid(), SIGKILL);
}

TEST_CASE("a program whose server cannot be reached in time fails as with a lost server") {
  Pool pool({}, {"--resume-timeout", "2"});
  CuttingProxy proxy(pool.poold().endpoint(), 1, 1);
  proxy.stop_cutting();
  Process app({driver_app(), "counting", "1000000", "4000"},
              pool.through({{"GPUPOOL", proxy.endpoint().text()}}));
  REQUIRE(app.await_output("working"));
  proxy.go_away();
  CHECK(app.wait(kLongPatience) == 1);
  const std::string output = app.output();
  INFO(output);
  CHECK(lines_with(output, "CUDA calls wait for up to 2 s").size() == 1);
  CHECK(lines_with(output, "lost the connection to server").size() == 2);  // the warning and the error
  CHECK(lines_with(output, "CUDA_ERROR_DEVICE_UNAVAILABLE").size() == 1);
  CHECK(pool.poold().await_log("session_ended"));
}

TEST_CASE("a program whose session was ended while it was away is told why") {
  const bool soon = GENERATE(true, false);  // it returns while the worker still ends
  Pool pool({}, kResumes);
  CuttingProxy proxy(pool.poold().endpoint(), 1, 1);
  proxy.stop_cutting();
  Process app({driver_app(), "counting", "1000000", "4000"},
              pool.through({{"GPUPOOL", proxy.endpoint().text()}}));
  REQUIRE(app.await_output("working"));
  ::kill(app.pid(), SIGSTOP);
  proxy.cut();
  REQUIRE(pool.poold().await_log("client_connection_broken"));
  CHECK(run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "kill", "1",
                    "--reason", "the rack moves"})
            .status == 0);
  if (!soon) REQUIRE(pool.poold().await_log("session_ended"));
  ::kill(app.pid(), SIGCONT);
  CHECK(app.wait(kLongPatience) == 1);
  const std::string output = app.output();
  INFO(output);
  CHECK(lines_with(output, "ended by an administrator: the rack moves").size() == 1);
}

TEST_CASE("the session of a killed program ends soon and that of an ended program at once") {
  Pool pool({}, kResumes);
  Process killed({driver_app(), "counting", "1000000", "4000"}, pool.through());
  REQUIRE(killed.await_output("working"));
  ::kill(killed.pid(), SIGKILL);
  CHECK(pool.poold().await_log("session_ended", 1));  // within its patience, and not after a minute
  CHECK(run_patiently({driver_app(), "counting", "1", "4000"}, pool.through()).status == 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  CHECK(pool.poold().await_log("session_ended", 2));
  CHECK(std::chrono::steady_clock::now() < end);
}

TEST_CASE("a program that sees no device leaves its server at once") {
  Pool pool;
  constexpr size_t kPrograms = 20;
  for (size_t i = 0; i < kPrograms; ++i) {
    const Finished app =
        run_patiently({driver_app(), "no_visible_devices"}, pool.through({{"CUDA_VISIBLE_DEVICES", ""}}));
    INFO(app.output);
    CHECK(app.status == 0);
  }
  REQUIRE(pool.poold().await_log("session_ended", kPrograms));
  // The session of a program that was killed is kept for some seconds.
  CHECK(lines_with(pool.poold().log(), "client_connection_broken").empty());
}

TEST_CASE("only a session's client can resume it") {
  Pool pool({}, kResumes);
  Resumable session(pool);
  CHECK(session.reply.resume_timeout_ms == 60'000);
  CHECK(session.reply.resume_key.size() == 32);
  session.client.ping();
  constexpr uint64_t kPong = sizeof(wire::MessageHeader);
  auto wrong = session.hello_for(1, kPong);
  wrong.resume_proof.back() = static_cast<char>(wrong.resume_proof.back() ^ 1);
  auto other_count = session.hello_for(1, kPong);
  other_count.resume_received = 0;
  auto other_link = session.hello_for(1, kPong);
  other_link.bulk_link = 1;
  auto no_link = session.hello_for(1, kPong);
  no_link.bulk_link = 1000;
  auto short_proof = session.hello_for(1, kPong);
  short_proof.resume_proof.resize(31);
  auto other_session = session.hello_for(1, kPong);
  other_session.session_id.assign(16, 'x');
  auto other_tenant = session.hello_for(1, kPong);
  other_tenant.tenant = "somebody";
  for (const auto& hello :
       {wrong, other_count, other_link, no_link, short_proof, other_session, other_tenant})
    CHECK(session.answer_to(hello).status == hello::Status::denied);
  session.client.ping();  // undisturbed

  // The true client, whose old connection the server still believes to be good.
  RawClient back(session.endpoint);
  const auto hello = session.hello_for(1, 2 * kPong);
  back.send_hello(hello);
  const auto reply = back.receive_reply();
  CHECK(reply.status == hello::Status::ok);
  CHECK(reply.resume_received == 2 * sizeof(wire::CommandHeader));
  CHECK(session.client.await_end());
  // Replayed, or older than the last one.
  CHECK(session.answer_to(hello).status == hello::Status::denied);
  CHECK(session.answer_to(session.hello_for(0, 2 * kPong)).status == hello::Status::denied);
  // A count that the client cannot have.
  CHECK(session.answer_to(session.hello_for(2, 1'000'000)).status == hello::Status::ok);
  CHECK(pool.poold().await_log("session_ended"));
  CHECK(session.answer_to(session.hello_for(3, 2 * kPong)).status == hello::Status::denied);
}

TEST_CASE("another tenant cannot resume a session, even with a valid proof") {
  const TemporaryFolder folder;
  const std::string own = *make_token(), others = *make_token();
  std::string config;
  for (const auto& [name, token] : {std::pair("own", own), std::pair("other", others)})
    config += std::string("[[tenant]]\nname = \"") + name + "\"\ntokens = [\"" +
              hash_text(hash_token(token)) + "\"]\n";
  Pool pool({}, {"--resume-timeout", "60", "--config", folder.write("poold.toml", config)});
  expect_only_with(own, others, pool);
}

TEST_CASE("another lease of the same tenant cannot resume a session, even with a valid proof") {
  LeaseMaker maker;
  std::vector<std::string> options = maker.options();
  options.insert(options.end(), kResumes.begin(), kResumes.end());
  Pool pool({}, options);
  const std::string gpu = parse_json(pool_admin(pool, {"gpus"}).output)[0]["uuid"];
  expect_only_with(maker.token(maker.lease({gpu}, 100)), maker.token(maker.lease({gpu}, 100)), pool);
}

TEST_CASE("a lease's older token resumes its session, but needs the proof and begins no session") {
  LeaseMaker maker;
  std::vector<std::string> options = maker.options();
  options.insert(options.end(), kResumes.begin(), kResumes.end());
  Pool pool({}, options);
  lease::Lease lease = maker.lease({parse_json(pool_admin(pool, {"gpus"}).output)[0]["uuid"]}, 100);
  Resumable session(pool, maker.token(lease));
  session.client.ping();
  constexpr uint64_t kPong = sizeof(wire::MessageHeader);
  lease.set_serial(lease.serial() + 1);
  const Resumable renewed(pool, maker.token(lease));  // another session, which shows the newer token
  hello::Hello fresh = test_hello();
  fresh.can_resume = true;
  fresh.token = session.token;
  CHECK(session.answer_to(fresh).status == hello::Status::denied);
  auto unproven = session.hello_for(1, kPong);
  unproven.resume_proof = renewed.hello_for(1, kPong).resume_proof;
  CHECK(session.answer_to(unproven).status == hello::Status::denied);
  CHECK(session.answer_to(session.hello_for(1, kPong)).status == hello::Status::ok);
}

TEST_CASE("a client that cannot resume keeps no session alive") {
  Pool pool({}, kResumes);
  RawClient client(pool.poold().endpoint());
  const auto reply = client.open();
  CHECK(reply.resume_timeout_ms == 0);
  client.ping();
  client.close();
  CHECK(pool.poold().await_log("session_ended"));
  CHECK(pool.poold().log().find("client_connection_broken") == std::string::npos);
}
