// Servers with tls ports send each other sessions and copies encrypted, and reject connections that are not.
#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool_admin.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/certificates.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/end_file.h"
#include "tests/support/raw_peer.h"
#include "tests/support/slow_link.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

struct EncryptedHosts : TwoHosts {
  EncryptedHosts() : TwoHosts(Ports::tls, {"--log-level", "debug"}) {}
  Finished move(size_t from, const std::string& to) {
    Pool& source = (*this)[from];
    const Json sessions = sessions_of(source);
    REQUIRE(sessions.size() == 1);
    return pool_admin(source, {"migrate", std::to_string(sessions[0]["number"].get<uint64_t>()), "--to", to,
                               "--timeout", "60"});
  }
};

bool has_kernels(const std::string& bytes) {
  return bytes.find(".visible .entry") != std::string::npos;
}

bool has_hello_of_server(const std::string& bytes) {
  const wire::Preamble preamble{.protocol_version = wire::kPeerProtocolVersion,
                                .length = sizeof(wire::PeerHello)};
  return bytes.find(RawClient::bytes_of(preamble)) != std::string::npos;
}

}  // namespace

TEST_CASE("a program counts right while its encrypted session moves between servers") {
  EncryptedHosts hosts;
  const EndFile file;
  Process app({driver_app(), "counting", "1000000", "400000", file.end}, hosts.environment(hosts.url_of(0)));
  REQUIRE(app.await_output("working", kLongPatience));
  for (size_t at = 0; at < 4; ++at) {
    const Finished moved = hosts.move(at % 2, hosts.url_of(1 - at % 2));
    INFO(moved.output);
    REQUIRE(moved.status == 0);
  }
  file.end_program();
  expect_success(app, "counted to");
}

// The modules of a session travel from server to server. With tcp ports they can be read, which shows that
// the test would find them.
TEST_CASE("a move between tls ports cannot be read on the network") {
  Pool plain_source({}, {"--resume-timeout", "60", "--peers", "127.0.0.0/8"});
  Pool plain_target({}, {"--resume-timeout", "60"});
  EncryptedHosts hosts;
  for (const bool encrypted : {false, true}) {
    Pool& source = encrypted ? hosts[0] : plain_source;
    Pool& target = encrypted ? hosts[1] : plain_target;
    CuttingProxy network(target.poold().endpoint(), 1, 1);
    network.stop_cutting();
    network.record();
    const EndFile file;
    Process app({driver_app(), "counting", "1000000", "4000", file.end},
                encrypted ? hosts.environment(hosts.url_of(0)) : source.through({{"GPUPOOL_SHM", "0"}}));
    REQUIRE(app.await_output("working", kLongPatience));
    const std::string address = encrypted ? hosts.url(network.endpoint().port) : network.endpoint().text();
    const Finished moved = pool_admin(source, {"migrate", "1", "--to", address, "--timeout", "60"});
    INFO(moved.output);
    REQUIRE(moved.status == 0);
    file.end_program();
    expect_success(app, "counted to");
    CHECK(has_hello_of_server(network.recorded()));
    CHECK(has_kernels(network.recorded()) == !encrypted);
  }
}

TEST_CASE("copies between tls ports go from server to server") {
  EncryptedHosts hosts;
  const auto link_to = [&](size_t host) {
    return std::make_unique<SlowLink>(transport::Endpoint{"tcp", "127.0.0.1", hosts[host].poold().port()},
                                      SlowLink::Quality{});
  };
  const auto one = link_to(0), other = link_to(1);
  const auto url = [](const SlowLink& link) { return "tls" + link.url().substr(3); };
  const Finished app = run_patiently({driver_app(), "large_copies_between_devices", "4"},
                                     hosts.environment(url(*one) + "," + url(*other)));
  INFO(app.output);
  CHECK(app.status == 0);
  // As tests/e2e/several_servers_test.cc counts without TLS.
  constexpr uint64_t kOnce = 16u << 20;
  CHECK(one->bytes_down() + other->bytes_down() < kOnce + kOnce / 2);
  CHECK(one->bytes_up() + other->bytes_up() < 9 * kOnce + kOnce / 2);
  CHECK(one->bytes_up() + other->bytes_up() > 9 * kOnce);
}

TEST_CASE("a server without a tls port sends to a tls port through the program") {
  Pool plain({}, {"--peers", "127.0.0.0/8", "--log-level", "debug"});
  EncryptedHosts hosts;
  Environment environment = hosts.environment(plain.poold().endpoint().text() + "," + hosts.url_of(0));
  environment["GPUPOOL_BULK_CONNECTIONS"] = "0";
  const Finished app = run_patiently({driver_app(), "copies_between_devices"}, environment);
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(plain.poold().await_log("bulk_connection"));  // the other way
  REQUIRE(hosts[0].poold().await_log("session_ended"));
  CHECK(lines_with(hosts[0].poold().log(), "bulk_connection").empty());
}

TEST_CASE("a server that has the key of a copy but does not encrypt it at a tls port sends nothing") {
  EncryptedHosts hosts;
  constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);
  constexpr uint64_t kBytes = wire::kBulkChunkBytes;
  transport::Options trusting;
  trusting.tls.ca = hosts.authority_certificate();
  const auto address = transport::Endpoint::parse(hosts.url_of(0));
  RawClient client(*address, trusting);
  const auto reply = client.open();
  CHECK(reply.encrypts_peers);
  const uint64_t memory = reply.addresses.base;
  const auto send = [&](wire::Command command, const auto& body, uint16_t flags, uint64_t context) {
    return client.send_command(command, RawClient::bytes_of(body), context, flags);
  };
  send(wire::Command::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0, 0);
  send(wire::Command::map_memory, wire::MapMemory{memory, 2 * kBytes, 0, 0}, 0, kContext);
  const uint64_t copy =
      send(wire::Command::bulk_to_device, wire::BulkCopy{0, memory, kBytes, kBytes, 1, 0, 0}, 0, kContext);
  client.ping();

  const auto port = transport::Endpoint{"tcp", "127.0.0.1", hosts[0].poold().port()};
  const auto key = peers::copy_key(reply.bulk_token, copy);
  wire::CopyKey wrong = key;
  wrong[0] ^= 1;
  RawPeer stranger(port);
  CHECK(stranger.open(reply.session_id, copy, wrong, peers::Channel::encrypted).status ==
        hello::Status::denied);
  // Proofs for a tcp port, which somebody has brought here.
  RawPeer redirected(port);
  CHECK(redirected.open(reply.session_id, copy, key).status == hello::Status::denied);

  RawPeer plain(port);
  plain.send_hello(reply.session_id, copy);
  const wire::PeerAnswer answer = plain.receive_answer();
  CHECK(answer.proof != plain.proof_of_accepting(key, answer, peers::Channel::plain));
  CHECK(answer.proof == plain.proof_of_accepting(key, answer, peers::Channel::encrypted));
  plain.send(RawClient::bytes_of(plain.prove(key, answer, peers::Channel::encrypted)));
  const wire::BulkHeader piece{.length = kBytes, .flags = 0, .copy = copy};
  plain.send(std::string(RawClient::bytes_of(piece)) + std::string(4096, 'x'));
  CHECK(plain.await_end(kLongPatience));
  client.ping();  // undisturbed
  send(wire::Command::cancel_bulk, wire::CancelBulk{copy}, 0, 0);
  const auto asked = send(wire::Command::copy_from_device, wire::CopyFromDevice{0, memory, 16, 16, 1},
                          wire::kWantsReply, kContext);
  std::string read;
  while (read.empty()) {
    const Message message = client.receive_message();
    REQUIRE((message.header.kind == wire::MessageKind::device_data ||
             message.header.kind == wire::MessageKind::reply));
    if (message.header.kind == wire::MessageKind::device_data)
      read = message.body.substr(sizeof(wire::DeviceData));
    else
      REQUIRE(message.header.sequence != asked);
  }
  CHECK(read == std::string(16, '\0'));
}

// poold may also listen on a tcp port, for example for clients on its own host.
TEST_CASE("an encrypted session takes nothing from a server that connects to a tcp port") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Pool pool({}, {"--listen", "tls://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0", "--tls-certificate",
                 files.certificate, "--tls-key", files.key, "--peers", "127.0.0.0/8"});
  REQUIRE(pool.poold().await_log("listening"));
  const auto port_of = [log = pool.poold().log()](const std::string& scheme) {
    const std::string address = scheme + "://127.0.0.1:";
    const size_t at = log.find(address);
    REQUIRE(at != std::string::npos);
    return static_cast<uint16_t>(std::stoi(log.substr(at + address.size())));
  };
  transport::Options trusting;
  trusting.tls.ca = authority.certificate();
  const transport::Endpoint plain{"tcp", "127.0.0.1", port_of("tcp")};
  for (const bool encrypted : {false, true}) {
    INFO((encrypted ? "tls" : "tcp"));
    RawClient client(encrypted ? transport::Endpoint{"tls", "127.0.0.1", port_of("tls")} : plain, trusting);
    hello::Hello hello = test_hello();
    hello.can_resume = hello.can_migrate = true;
    const auto reply = client.open(hello);
    const uint64_t adoption = client.send_command(wire::Command::adopt_session, {}, 0, wire::kWantsReply);
    RawPeer source(plain);
    const auto status =
        source.open(reply.session_id, adoption, peers::copy_key(reply.bulk_token, adoption)).status;
    CHECK(status == (encrypted ? hello::Status::denied : hello::Status::ok));
  }
}

TEST_CASE("a client that does not encrypt is refused at a tls port with the reason") {
  EncryptedHosts hosts;
  RawClient client({"tcp", "127.0.0.1", hosts[0].poold().port()});
  client.send_hello(test_hello());
  const auto reply = client.receive_reply();
  CHECK(reply.status == hello::Status::denied);
  CHECK(reply.reason.find("this port requires TLS") != std::string::npos);
}
