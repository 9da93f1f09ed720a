// Tests the session on another server to which a session moves, or returns after it was suspended, against a
// fake worker: what it says, and what wrong answers do.
#include "client/session/migrator.h"

#include <algorithm>

#include "protocol/peers/proof.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/contains.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using wire::Command;

namespace {

const std::string kId(16, 'i'), kToken(32, 't');

Settings known_settings() {
  Settings settings = test_settings();
  settings.tenant = "alice";
  settings.token = "secret";
  return settings;
}

// A server to which sessions can move.
struct Target {
  explicit Target(const transport::TlsOptions& tls = {}) : worker(tls) {
    worker.offer.session_id = kId;
    worker.offer.bulk_token = kToken;
    worker.offer.resume_timeout_ms = 60'000;
    worker.offer.peer_protocol = wire::kPeerProtocolVersion;
    worker.ignore(Command::adopt_session);
  }
  Result<std::unique_ptr<Migrator>> try_open() const {
    return Migrator::open(worker.url(), known_settings());
  }
  std::unique_ptr<Migrator> open() const {
    auto opened = try_open();
    REQUIRE(opened);
    return std::move(*opened);
  }
  FakeWorker worker;
};

// True if the hello names the session and proves that its sender has the key, for this attempt.
bool proves(const hello::Hello& hello, uint32_t link, uint64_t attempt) {
  return hello.session_id == kId && hello.bulk_link == link && hello.resume_attempt == attempt &&
         peers::proves_resume(hello.resume_proof, "resume key", link, attempt, 0);
}

}  // namespace

TEST_CASE("migrator: opens a session that can move on and be resumed") {
  const Target target;
  const auto migrator = target.open();
  const auto hellos = target.worker.hellos();
  REQUIRE(hellos.size() == 1);
  CHECK(hellos[0].tenant == "alice");
  CHECK(hellos[0].token == "secret");
  CHECK(hellos[0].can_resume);
  CHECK(hellos[0].can_migrate);
  CHECK(hellos[0].takes_quota_refusals);
  CHECK(hellos[0].session_id.empty());
  CHECK(migrator->server().text() == target.worker.url());
  CHECK(migrator->connection().started());
}

TEST_CASE("migrator: connects only where servers can connect to each other") {
  const auto error = [](const std::string& address) {
    Settings settings = known_settings();
    settings.connect_timeout = std::chrono::seconds(1);
    const auto opened = Migrator::open(address, settings);
    REQUIRE_FALSE(opened);
    return opened.error();
  };
  for (const char* const address : {"rdma://127.0.0.1:1", "shm:///tmp/poold"}) {
    INFO(address);
    const Error refused = error(address);
    CHECK(refused.code == ErrorCode::refused);
    CHECK_THAT(refused.message, ContainsSubstring("can only move to tcp:// and tls:// addresses"));
  }
  CHECK(error("nonsense").code == ErrorCode::invalid);
  CHECK(error("tcp://127.0.0.1:1").code == ErrorCode::reset);
  CHECK(error("tls://127.0.0.1:1").code == ErrorCode::reset);
}

TEST_CASE("migrator: reports why a server takes no session") {
  Target target;
  SECTION("it refuses") {
    target.worker.offer.status = hello::Status::busy;
    target.worker.offer.reason = "all session slots are in use";
    const auto opened = target.try_open();
    REQUIRE_FALSE(opened);
    CHECK(opened.error().message == "refused: all session slots are in use");
  }
  SECTION("its sessions end with their connections") {
    target.worker.offer.resume_timeout_ms = 0;
    const auto opened = target.try_open();
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == ErrorCode::refused);
    CHECK_THAT(opened.error().message, ContainsSubstring("--resume-timeout"));
  }
  SECTION("it is another service") {
    target.worker.raw_answer = std::string(64, 'x');
    CHECK(target.try_open().error().code == ErrorCode::malformed);
  }
}

TEST_CASE("migrator: accepts the same GPU at another place, with more memory") {
  Target target;
  auto known = target.worker.offer.devices;
  known[0].attributes.push_back({CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1});
  hello::Device& device = target.worker.offer.devices[0];
  device.attributes.push_back({CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 7});
  device.pci_bus_id = "0000:07:00.0";
  device.total_bytes += 1;
  CHECK(target.open()->compare(known, target.worker.offer.driver_version));
}

TEST_CASE("migrator: refuses a server that differs from what the program was told") {
  Target target;
  const std::vector<hello::Device> known = target.worker.offer.devices;
  const int version = target.worker.offer.driver_version;
  hello::Device& device = target.worker.offer.devices[0];
  std::string expected;
  SECTION("another version of the driver") {
    target.worker.offer.driver_version = version + 10;
    expected = "has version " + std::to_string(version + 10) + " of the driver API instead of ";
  }
  SECTION("more GPUs") {
    target.worker.offer.devices.push_back(known[0]);
    expected = "another number of GPUs";
  }
  SECTION("no GPU") {
    target.worker.offer.devices.clear();
    expected = "another number of GPUs";
  }
  SECTION("another GPU") {
    device.name = "other device";
    expected = "GPU 0 there has another name (other device instead of fake device)";
  }
  SECTION("less memory") {
    device.total_bytes -= 1;
    expected = "GPU 0 there has another memory size";
  }
  SECTION("another granularity") {
    device.granularity *= 2;
    expected = "another granularity of memory";
  }
  SECTION("fewer attributes") {
    device.attributes.pop_back();
    expected = "another number of attributes";
  }
  SECTION("another value of an attribute") {
    device.attributes[1].value += 1;
    expected = "another attribute " + std::to_string(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  }
  SECTION("another attribute") {
    device.attributes[1].id += 1;
    expected = "another attribute ";
  }
  const auto compared = target.open()->compare(known, version);
  REQUIRE_FALSE(compared);
  CHECK(compared.error().code == ErrorCode::refused);
  CHECK_THAT(compared.error().message, ContainsSubstring(expected));
}

TEST_CASE("migrator: tells the other worker where to connect and gives it the key of the adoption alone") {
  const Target target;
  const auto told = target.open()->target({.scheme = "tcp"}, false);
  REQUIRE(told);
  CHECK(told->port == target.worker.endpoint().port);
  CHECK(told->copy == wire::kAdoptSequence);
  CHECK(std::equal(kId.begin(), kId.end(), told->session_id.begin()));
  CHECK(told->key == peers::copy_key(kToken, wire::kAdoptSequence));
  CHECK(told->address[10] == 0xff);  // an IPv4 address
  CHECK(told->address[12] == 127);
  CHECK(told->tls == 0);
}

TEST_CASE("migrator: moves a session between tls ports only if both servers can encrypt it") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Target target({.ca = {}, .certificate = files.certificate, .key = files.key, .secret = {}});
  Settings settings = known_settings();
  settings.tls.ca = authority.certificate();
  const auto told = [&](bool source_encrypts, bool target_encrypts, bool same_server = false) {
    target.worker.offer.encrypts_peers = target_encrypts;
    const auto opened = Migrator::open(target.worker.url(), settings);
    REQUIRE(opened);
    CHECK((*opened)->server().scheme == "tls");
    return (*opened)->target({.scheme = "tls", .encrypts = source_encrypts}, same_server);
  };
  const auto both = told(true, true);
  REQUIRE(both);
  CHECK(both->tls == 1);
  const auto is_refused = [](const Result<wire::PeerTarget>& answer, const std::string& whose) {
    REQUIRE_FALSE(answer);
    CHECK(answer.error().code == ErrorCode::refused);
    CHECK(answer.error().message ==
          "the " + whose + "'s worker cannot encrypt the migration: it is of an older release");
  };
  is_refused(told(false, true), "source");
  is_refused(told(true, false), "target");
  is_refused(told(false, false), "source");
  // Within a server the session does not cross the network.
  const auto within = told(false, false, true);
  REQUIRE(within);
  CHECK(within->tls == 0);
}

TEST_CASE("migrator: needs no server that can encrypt for a tcp port") {
  const Target target;
  const auto told = target.open()->target({.scheme = "tcp"}, false);
  REQUIRE(told);
  CHECK(told->tls == 0);
}

TEST_CASE("migrator: refuses a server to which no other server can connect") {
  Target target;
  SECTION("no token") {
    target.worker.offer.bulk_token.clear();
  }
  SECTION("an id of another size") {
    target.worker.offer.session_id.push_back('i');
  }
  SECTION("another version between servers") {
    target.worker.offer.peer_protocol = wire::kPeerProtocolVersion + 1;
  }
  const auto told = target.open()->target({.scheme = "tcp"}, false);
  REQUIRE_FALSE(told);
  CHECK(told.error().code == ErrorCode::refused);
  CHECK(told.error().message == "other servers cannot connect to it");
}

TEST_CASE("migrator: learns the number of the last command when the session was adopted") {
  Target target;
  const auto migrator = target.open();
  REQUIRE(migrator->ask_to_adopt());
  const auto asked = target.worker.await_command(Command::adopt_session);
  CHECK(asked.header.sequence == wire::kAdoptSequence);
  CHECK(asked.header.flags == wire::kWantsReply);
  CHECK(asked.header.length == 0);
  target.worker.send(wire::MessageKind::pong, 0);                                    // a sign of life
  target.worker.reply(wire::kAdoptSequence + 1, bytes_of(wire::AdoptedSession{7}));  // no answer to this
  target.worker.reply(wire::kAdoptSequence, bytes_of(wire::AdoptedSession{4711}));
  const auto adopted = migrator->adopted(std::chrono::seconds(30));
  REQUIRE(adopted);
  CHECK(*adopted == 4711);
  CHECK(migrator->take_wish().empty());
}

TEST_CASE("migrator: keeps a request to migrate that comes before the session was adopted") {
  Target target;
  const auto migrator = target.open();
  REQUIRE(migrator->ask_to_adopt());
  (void)target.worker.await_command(Command::adopt_session);
  const std::string wish = bytes_of(wire::MigrationWish{7}) + "tcp://gpu-2:9700";
  target.worker.send(wire::MessageKind::migration_wish, 0, wish);
  target.worker.reply(wire::kAdoptSequence, bytes_of(wire::AdoptedSession{4711}));
  REQUIRE(migrator->adopted(std::chrono::seconds(30)));
  const auto kept = migrator->take_wish();
  CHECK(std::string(reinterpret_cast<const char*>(kept.data()), kept.size()) == wish);
  CHECK(migrator->take_wish().empty());
}

TEST_CASE("migrator: a session that was not adopted is reported with the reason") {
  Target target;
  const auto migrator = target.open();
  REQUIRE(migrator->ask_to_adopt());
  (void)target.worker.await_command(Command::adopt_session);
  std::string reason;
  ErrorCode code = ErrorCode::refused;
  SECTION("the server says why") {
    const std::string text = "a graph cannot be made again";
    target.worker.reply(wire::kAdoptSequence, bytes_of(static_cast<uint32_t>(text.size())) + text,
                        CUDA_ERROR_NOT_SUPPORTED);
    reason = text;
  }
  SECTION("the server ends the session") {
    target.worker.send(wire::MessageKind::end, 0, "poold is shutting down");
    reason = "poold is shutting down";
  }
  SECTION("the answer is too short") {
    target.worker.reply(wire::kAdoptSequence, "1234567");
    code = ErrorCode::malformed;
    reason = "its answer is malformed";
  }
  SECTION("the answer is too long") {
    target.worker.reply(wire::kAdoptSequence, std::string(9, '1'));
    code = ErrorCode::malformed;
    reason = "its answer is malformed";
  }
  SECTION("a request to migrate is too short") {
    target.worker.send(wire::MessageKind::migration_wish, 0, "1234567");
    code = ErrorCode::malformed;
    reason = "its request to migrate is malformed";
  }
  SECTION("the message is above the limit") {
    target.worker.send_bytes(bytes_of(wire::MessageHeader{.length = wire::kMaxBodyBytes + 1}));
    code = ErrorCode::malformed;
    reason = "its message is too long";
  }
  SECTION("the connection breaks in the middle of the answer") {
    target.worker.send_bytes(bytes_of(wire::MessageHeader{.length = 8, .sequence = wire::kAdoptSequence}) +
                             "1234");
    target.worker.close();
    code = ErrorCode::lost;
    reason = "the connection broke";
  }
  SECTION("the server says nothing until the deadline") {
    target.worker.send(wire::MessageKind::pong, 0);
    code = ErrorCode::lost;
    reason = "it does not answer";
  }
  const bool silent = reason == "it does not answer";
  const auto adopted = migrator->adopted(std::chrono::seconds(silent ? 1 : 30));
  REQUIRE_FALSE(adopted);
  CHECK(adopted.error().code == code);
  CHECK(adopted.error().message == reason);
}

TEST_CASE("migrator: asks for a suspended session until it may go on") {
  Target target;
  Migrator::Suspended suspended{.session_id = kId, .resume_key = "resume key", .failure = "no room there"};
  target.worker.offer.status = hello::Status::suspended;
  target.worker.offer.moved_to = "tcp://192.0.2.1:9700";
  auto asked = Migrator::come_back(target.worker.url(), known_settings(), suspended);
  REQUIRE(asked);
  CHECK((*asked)->reply().status == hello::Status::suspended);
  CHECK((*asked)->reply().moved_to == "tcp://192.0.2.1:9700");
  CHECK_FALSE((*asked)->connection().started());
  CHECK(suspended.failure.empty());  // the server knows it now

  target.worker.offer.status = hello::Status::ok;
  asked = Migrator::come_back(target.worker.url(), known_settings(), suspended);
  REQUIRE(asked);
  CHECK((*asked)->connection().started());
  const auto hellos = target.worker.hellos();
  REQUIRE(hellos.size() == 2);
  CHECK(proves(hellos[0], wire::kReturnsLink, 1));
  CHECK(hellos[0].failure == "no room there");
  CHECK(proves(hellos[1], wire::kReturnsLink, 2));
  CHECK(hellos[1].failure.empty());
  CHECK(hellos[1].token == "secret");
}

TEST_CASE("migrator: a suspended session that is over is refused, and a lost answer loses no failure") {
  Target target;
  Migrator::Suspended suspended{.session_id = kId, .resume_key = "resume key", .failure = "no room there"};
  target.worker.raw_answer = "x";  // hangs up in the middle of it
  const auto cut = Migrator::come_back(target.worker.url(), known_settings(), suspended);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().code != ErrorCode::refused);
  CHECK(suspended.failure == "no room there");
  target.worker.raw_answer.clear();
  target.worker.offer.status = hello::Status::denied;
  target.worker.offer.reason = "this session has ended";
  const auto refused = Migrator::come_back(target.worker.url(), known_settings(), suspended);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::refused);
  CHECK(refused.error().message == "refused: this session has ended");
  CHECK(suspended.attempts == 2);
}

TEST_CASE("migrator: tells the server that a suspended session goes on") {
  Target target;
  Migrator::Suspended suspended{.session_id = kId, .resume_key = "resume key", .attempts = 5};
  CHECK(Migrator::forget(target.worker.url(), known_settings(), suspended));
  REQUIRE(target.worker.hellos().size() == 1);
  CHECK(proves(target.worker.hellos()[0], wire::kForgetsLink, 6));
  target.worker.offer.status = hello::Status::denied;
  CHECK(Migrator::forget(target.worker.url(), known_settings(), suspended).error().code ==
        ErrorCode::refused);
  CHECK(Migrator::forget("nonsense", known_settings(), suspended).error().code == ErrorCode::invalid);
}
