// Tests credentials that are replaced or removed while poold runs.
#include <signal.h>

#include <optional>
#include <sstream>

#include "protocol/wire/checkpoint.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"
#include "tests/support/processes.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker_gate.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

struct HashedToken {
  std::string text, hash;
};

HashedToken new_hashed_token() {
  std::istringstream lines(run_to_end({program_path("poold"), "--make-token"}, {}).output);
  HashedToken token;
  std::string line;
  std::getline(lines, token.text);
  std::getline(lines, line);
  token.hash = line.substr(line.find('"') + 1, std::string("sha256:").size() + 64);
  return token;
}

std::string list_of(const std::string& key, const std::vector<HashedToken>& tokens) {
  std::string text = key + " = [";
  for (const HashedToken& token : tokens) text += "\"" + token.hash + "\", ";
  return text + "]\n";
}

std::string tenant_with(const std::string& name, const std::vector<HashedToken>& tokens,
                        const std::vector<HashedToken>& retired = {}) {
  return "[[tenant]]\nname = \"" + name + "\"\n" + list_of("tokens", tokens) +
         (retired.empty() ? "" : list_of("retired_tokens", retired));
}

hello::Hello with(const HashedToken& token) {
  hello::Hello hello = test_hello();
  hello.token = token.text;
  return hello;
}

hello::Status status(const PooldProcess& poold, hello::Hello hello) {
  RawClient client(poold.endpoint());
  client.send_hello(hello);
  return client.receive_reply().status;
}

class Configured {
 public:
  explicit Configured(const std::string& text, std::vector<std::string> more = {},
                      const Environment& environment = {}) {
    const std::string path = folder_.write("poold.toml", text);
    more.insert(more.end(), {"--config", path, "--audit-file", audit_file()});
    poold_.emplace(kDevice, more, environment);
  }
  void reload(const std::string& text) {
    folder_.write("poold.toml", text);
    poold_->process().signal(SIGHUP);
    REQUIRE(poold_->await_log(" reloaded ", ++reloads_));
  }
  std::string audit_file() const { return folder_.path() / "audit.json"; }
  PooldProcess& operator*() { return *poold_; }
  PooldProcess* operator->() { return &*poold_; }

 private:
  const TemporaryFolder folder_;
  std::optional<PooldProcess> poold_;
  size_t reloads_ = 0;
};

}  // namespace

TEST_CASE("replacing a tenant's token ends none of its running sessions") {
  const HashedToken old = new_hashed_token(), fresh = new_hashed_token();
  Configured poold(tenant_with("a", {old}));
  RawClient first(poold->endpoint());
  first.open(with(old));

  poold.reload(tenant_with("a", {old, fresh}));
  CHECK(status(*poold, with(old)) == hello::Status::ok);
  RawClient second(poold->endpoint());
  second.open(with(fresh));
  first.ping();

  poold.reload(tenant_with("a", {fresh}, {old}));
  CHECK(status(*poold, with(old)) == hello::Status::denied);
  CHECK(status(*poold, with(fresh)) == hello::Status::ok);
  first.ping();
  second.ping();

  poold.reload(tenant_with("a", {fresh}));
  const auto why = first.await_end();
  REQUIRE(why);
  CHECK(has(*why, "the token that authenticated this session was removed from the server's configuration"));
  second.ping();
}

TEST_CASE("removing a tenant ends its sessions and no others") {
  const HashedToken a = new_hashed_token(), b = new_hashed_token();
  Configured poold(tenant_with("a", {a}) + tenant_with("b", {b}));
  RawClient removed(poold->endpoint()), stays(poold->endpoint());
  removed.open(with(a));
  stays.open(with(b));
  poold.reload(tenant_with("b", {b}));
  const auto why = removed.await_end();
  REQUIRE(why);
  CHECK(has(*why, "tenant 'a' was removed from the server's configuration"));
  stays.ping();
  REQUIRE(poold->await_log("session_ended"));
  CHECK(has(poold->log(), "session_killed session=1 "));
  CHECK(eventually([&] {
    return has(content_of(poold.audit_file()),
               "\"reason\":\"tenant 'a' was removed from the server's configuration\"");
  }));
  CHECK(has(content_of(poold.audit_file()), "\"credential\":\"token " + a.hash.substr(7, 8) + "\""));
}

TEST_CASE("a client that waits for a worker is refused when its tenant is removed") {
  const HashedToken a = new_hashed_token(), b = new_hashed_token();
  const WorkerGate gate;
  std::vector<std::string> options = gate.options();
  options.insert(options.end(), {"--metrics", "127.0.0.1:0"});
  Configured poold(tenant_with("a", {a}) + tenant_with("b", {b}), options, gate.environment());
  REQUIRE(poold->await_log("url=http://"));
  REQUIRE(poold->await_log("worker_ready"));
  gate.close();
  RawClient runs(poold->endpoint()), waits(poold->endpoint()), other(poold->endpoint());
  runs.open(with(b));
  waits.send_hello(with(a));
  other.send_hello(with(b));
  REQUIRE(eventually(
      [&] { return has(http_get(metrics_port(poold->log()), "/metrics"), "gpupool_clients_waiting 2\n"); }));
  poold.reload(tenant_with("b", {b}));
  const auto refused = waits.receive_reply();
  CHECK(refused.status == hello::Status::denied);
  CHECK(has(refused.reason, "tenant 'a' was removed from the server's configuration"));
  runs.ping();
  gate.open();
  CHECK(other.receive_reply().status == hello::Status::ok);
}

TEST_CASE("a tenant with only retired tokens starts no sessions and does not admit anonymous clients") {
  const HashedToken a = new_hashed_token();
  Configured poold(tenant_with("a", {a}));
  RawClient runs(poold->endpoint());
  runs.open(with(a));
  poold.reload(tenant_with("a", {}, {a}));
  CHECK(status(*poold, with(a)) == hello::Status::denied);
  CHECK(status(*poold, test_hello()) == hello::Status::denied);
  runs.ping();
}

TEST_CASE("anonymous sessions end when tenants get credentials") {
  Configured poold("[[tenant]]\nname = 'a'\n");
  RawClient runs(poold->endpoint());
  runs.open();
  poold.reload(tenant_with("a", {new_hashed_token()}));
  const auto why = runs.await_end();
  REQUIRE(why);
  CHECK(has(*why, "now requires authentication"));
}

TEST_CASE("watchers and checkpoint clients are disconnected when their credential is removed") {
  const HashedToken old = new_hashed_token(), fresh = new_hashed_token();
  Configured poold(tenant_with("a", {old, fresh}));
  for (const bool monitor : {true, false}) {
    hello::Hello hello = with(monitor ? old : fresh);
    hello.monitor = monitor;
    hello.checkpoint = !monitor;
    RawClient loses(poold->endpoint()), keeps(poold->endpoint());
    loses.open(hello);
    hello.token = monitor ? fresh.text : old.text;
    keeps.open(hello);
    poold.reload(tenant_with("a", {monitor ? fresh : old}));
    CHECK(loses.await_end());
    // The other connection still answers its next question.
    wire::Preamble question;
    std::string bytes(RawClient::bytes_of(question));
    if (!monitor) {
      question.length = sizeof(wire::CheckpointQuestion);
      const wire::CheckpointQuestion asked{.action = wire::CheckpointAction::find, .pid = 1};
      bytes = std::string(RawClient::bytes_of(question)) + std::string(RawClient::bytes_of(asked));
    }
    keeps.send(bytes);
    std::byte answer[1];
    CHECK(transport::receive_exact(keeps.connection(), answer, transport::Clock::now() + kPatience));
    poold.reload(tenant_with("a", {old, fresh}));
  }
}

TEST_CASE("removing a certificate name ends the sessions of that certificate") {
  const Authority servers("servers"), clients("clients");
  const auto files = servers.sign("server", "IP:127.0.0.1");
  const std::string both = "[[tenant]]\nname = 'a'\ncertificates = ['one', 'two']\n";
  Configured poold(both, {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                          "--tls-key", files.key, "--tls-client-ca", clients.certificate()});
  const auto options_of = [&](const std::string& name) {
    const auto own = clients.sign(name);
    transport::Options options;
    options.tls = {.ca = servers.certificate(), .certificate = own.certificate, .key = own.key, .secret = {}};
    return options;
  };
  const transport::Endpoint endpoint{"tls", "127.0.0.1", poold->port()};
  RawClient one(endpoint, options_of("one")), two(endpoint, options_of("two"));
  one.open();
  two.open();
  poold.reload("[[tenant]]\nname = 'a'\ncertificates = ['two']\n");
  const auto why = one.await_end();
  REQUIRE(why);
  CHECK(has(*why, "the certificate name that authenticated this session was removed"));
  two.ping();
  CHECK(has(content_of(poold.audit_file()), "\"credential\":\"certificate one\""));
}
