// Tests authentication in poold: accepted credentials, the resulting tenant, rate limits, and the audit log.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "protocol/transport/shm/address.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"
#include "tests/support/processes.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

struct Token {
  std::string text;
  std::string line;  // in the configuration file
};

Token new_token() {
  const Finished made = run_to_end({program_path("poold"), "--make-token"}, {});
  REQUIRE(made.status == 0);
  std::istringstream lines(made.output);
  Token token;
  std::getline(lines, token.text);
  std::getline(lines, token.line);
  REQUIRE(token.text.size() == 64);
  REQUIRE(token.line.starts_with("tokens = [\"sha256:"));
  return token;
}

hello::Hello hello_with(const std::string& token, const std::string& tenant = "") {
  hello::Hello hello = test_hello();
  hello.token = token;
  hello.tenant = tenant;
  return hello;
}

hello::HelloReply answer(const PooldProcess& poold, const hello::Hello& hello) {
  RawClient client(poold.endpoint());
  client.send_hello(hello);
  return client.receive_reply();
}

std::string tenant_text(const std::string& name, const Token& token, const std::string& quota = "") {
  return "[[tenant]]\nname = \"" + name + "\"\n" + token.line + "\n" +
         (quota.empty() ? "" : "[tenant.quota]\n" + quota + "\n");
}

}  // namespace

TEST_CASE("only a tenant's token opens its sessions") {
  const TemporaryFolder folder;
  const Token a = new_token(), b = new_token(), nobodys = new_token();
  const std::string config = folder.write("poold.toml", tenant_text("a", a) + tenant_text("b", b));
  PooldProcess poold(kDevice, {"--config", config});
  RawClient client(poold.endpoint());
  client.open(hello_with(a.text));
  client.ping();
  CHECK(poold.await_log("tenant=a "));
  RawClient other(poold.endpoint());
  other.open(hello_with(b.text, "b"));
  CHECK(poold.await_log("tenant=b "));

  const auto nothing = answer(poold, test_hello());
  CHECK(nothing.status == hello::Status::denied);
  CHECK(has(nothing.reason, "GPUPOOL_TOKEN_FILE"));
  const auto wrong = answer(poold, hello_with(nobodys.text));
  CHECK(wrong.status == hello::Status::denied);
  const auto not_its = answer(poold, hello_with(a.text, "b"));
  CHECK(not_its.status == hello::Status::denied);
  CHECK(wrong.reason == not_its.reason);
  CHECK(answer(poold, hello_with(a.text, "nobody")).reason == wrong.reason);

  RawClient local(transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port()));
  local.send_hello();
  CHECK(local.receive_reply().status == hello::Status::denied);
  RawClient local_with(transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port()));
  local_with.open(hello_with(b.text));
  for (const Token& token : {a, b, nobodys}) CHECK_FALSE(has(poold.log(), token.text));
}

TEST_CASE("a user of a tenant needs no token over an abstract Unix socket") {
  const TemporaryFolder folder;
  const std::string config =
      folder.write("poold.toml", "[[tenant]]\nname = 'local'\nusers = [" + std::to_string(::getuid()) +
                                     "]\n" + "[[tenant]]\nname = 'others'\nusers = [12345678]\n");
  PooldProcess poold(kDevice, {"--config", config});
  CHECK(answer(poold, test_hello()).status == hello::Status::denied);
  RawClient local(transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port()));
  local.open();
  CHECK(poold.await_log("tenant=local "));
}

// For the kernel, user 1000 of a container without a user namespace is user 1000 of the host.
TEST_CASE("users authenticate on sockets at paths only with --users-at-paths") {
  const TemporaryFolder folder;
  const Token token = new_token();
  const std::string config = folder.write(
      "poold.toml", tenant_text("local", token) + "users = [" + std::to_string(::getuid()) + "]\n");
  const std::string path = (folder.path() / "poold.sock").string();
  std::vector<std::string> options{"--config",          config,     "--listen",
                                   "tcp://127.0.0.1:0", "--listen", "shm://" + path};
  {
    PooldProcess poold(kDevice, options);
    CHECK(poold.await_log("users_need_tokens"));
    RawClient without({"shm", path, 0}), with({"shm", path, 0});
    without.send_hello();
    CHECK(without.receive_reply().status == hello::Status::denied);
    with.open(hello_with(token.text));
    RawClient abstract(transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port()));
    abstract.open();
  }
  options.push_back("--users-at-paths");
  PooldProcess poold(kDevice, options);
  RawClient local({"shm", path, 0});
  local.open();
  CHECK(poold.await_log("tenant=local "));
  CHECK_FALSE(has(poold.log(), "users_need_tokens"));
}

TEST_CASE("without credentials clients name their tenant") {
  const TemporaryFolder folder;
  PooldProcess poold(
      kDevice, {"--config", folder.write("poold.toml", "[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'b'\n")});
  CHECK(answer(poold, hello_with("", "b")).status == hello::Status::ok);
  CHECK(poold.await_log("tenant=b "));
  const auto unnamed = answer(poold, test_hello());
  CHECK(unnamed.status == hello::Status::denied);
  CHECK(has(unnamed.reason, "GPUPOOL_TENANT"));
}

TEST_CASE("the sessions quota of a tenant limits its sessions until one ends") {
  const TemporaryFolder folder;
  const Token a = new_token(), b = new_token();
  const std::string config =
      folder.write("poold.toml", tenant_text("a", a, "sessions = 2") + tenant_text("b", b));
  PooldProcess poold(kDevice, {"--config", config});
  RawClient first(poold.endpoint()), second(poold.endpoint());
  first.open(hello_with(a.text));
  second.open(hello_with(a.text));
  const auto third = answer(poold, hello_with(a.text));
  CHECK(third.status == hello::Status::busy);
  CHECK(has(third.reason, "2 session"));
  CHECK(answer(poold, hello_with(b.text)).status == hello::Status::ok);
  first.close();
  CHECK(poold.await_log("session_ended"));
  CHECK(eventually([&] { return answer(poold, hello_with(a.text)).status == hello::Status::ok; }));
}

TEST_CASE("SIGHUP reloads the tenants and an invalid file changes nothing") {
  const TemporaryFolder folder;
  const Token a = new_token(), b = new_token();
  const std::string config = folder.write("poold.toml", tenant_text("a", a));
  PooldProcess poold(kDevice, {"--config", config});
  CHECK(answer(poold, hello_with(a.text)).status == hello::Status::ok);
  CHECK(answer(poold, hello_with(b.text)).status == hello::Status::denied);

  folder.write("poold.toml", tenant_text("b", b) + "[tenant.quota]\nmemory = \"8GX\"\n");
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reload_failed"));
  CHECK(has(poold.log(), config));
  CHECK(has(poold.log(), "tenant 'b': quota.memory"));
  CHECK(answer(poold, hello_with(a.text)).status == hello::Status::ok);

  folder.write("poold.toml", tenant_text("b", b));
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reloaded"));
  CHECK(answer(poold, hello_with(a.text)).status == hello::Status::denied);
  CHECK(answer(poold, hello_with(b.text)).status == hello::Status::ok);
}

TEST_CASE("an address with too many failed attempts gets no more replies and other addresses do") {
  const TemporaryFolder folder;
  const Token a = new_token(), wrong = new_token();
  PooldProcess poold(kDevice, {"--config", folder.write("poold.toml", tenant_text("a", a))});
  unsigned answered = 0;
  for (int attempt = 0; attempt < 40; ++attempt) {
    RawClient client(poold.endpoint());
    client.send_hello(hello_with(wrong.text));
    try {
      answered += client.receive_reply().status == hello::Status::denied;
    } catch (const std::runtime_error&) {  // connection closed
    }
  }
  CHECK(answered >= 10);
  CHECK(answered < 40);
  CHECK(answer(poold, hello_with(a.text)).status == hello::Status::ok);
  CHECK(occurrences(poold.log(), "client_refused ") <= answered);
}

TEST_CASE("refused attempts without a reply are counted and summarized in the log and the audit file") {
  const TemporaryFolder folder;
  const Token a = new_token(), wrong = new_token();
  const std::string file = folder.path() / "audit.json";
  PooldProcess poold(kDevice, {"--config", folder.write("poold.toml", tenant_text("a", a)), "--audit-file",
                               file, "--metrics", "127.0.0.1:0"});
  constexpr size_t kAttempts = 60;
  for (size_t attempt = 0; attempt < kAttempts; ++attempt) {
    RawClient client(poold.endpoint());
    client.send_hello(hello_with(wrong.text));
    REQUIRE(client.await_end());
  }
  CHECK(has(http_get(metrics_port(poold.log()), "/metrics"),
            "gpupool_handshake_failures_total " + std::to_string(kAttempts) + "\n"));
  const auto sum_of_counts = [](const std::string& text, const std::string& event, const std::string& key) {
    size_t sum = 0;
    for (size_t at = 0; (at = text.find(event, at)) != std::string::npos;) {
      at = text.find(key, at) + key.size();
      sum += std::stoul(text.substr(at));
    }
    return sum;
  };
  CHECK(eventually([&] {
    return occurrences(poold.log(), "client_refused ") +
               sum_of_counts(poold.log(), "clients_refused_unlogged", "count=") ==
           kAttempts;
  }));
  CHECK(eventually([&] {
    return occurrences(content_of(file), "session_denied\"") +
               sum_of_counts(content_of(file), "sessions_denied_too", "\"count\":") ==
           kAttempts;
  }));
  CHECK(occurrences(content_of(file), "\n") < kAttempts);
}

TEST_CASE("wrong tokens of one local user do not suppress replies to another user") {
  if (::geteuid() != 0) return report_skip("needs root, to be two users");
  const TemporaryFolder folder;
  const Token a = new_token(), wrong = new_token();
  PooldProcess poold(kDevice, {"--config", folder.write("poold.toml", tenant_text("a", a))});
  const transport::Endpoint local = transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port());
  const auto answered = [&] {
    try {
      RawClient client(local);
      client.send_hello(hello_with(wrong.text));
      return client.receive_reply().status == hello::Status::denied;
    } catch (const std::runtime_error&) {  // connection closed
      return false;
    }
  };
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(2);
    for (int attempt = 0; attempt < 200; ++attempt) {
      if (!answered()) ::_exit(0);
    }
    ::_exit(1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);  // poold stopped answering failed attempts
  CHECK(answered());
}

TEST_CASE("the audit file records starts and ends and denials of sessions and can be rotated") {
  const TemporaryFolder folder;
  const Token a = new_token();
  const std::string file = folder.path() / "audit.json";
  PooldProcess poold(kDevice,
                     {"--config", folder.write("poold.toml", tenant_text("a", a, "memory = \"1GiB\"")),
                      "--audit-file", file});
  {
    RawClient client(poold.endpoint());
    hello::Hello hello = hello_with(a.text);
    hello.program = "prog\"ram";
    client.open(hello);
    client.ping();
    client.close();
  }
  CHECK(poold.await_log("session_ended"));
  CHECK(answer(poold, test_hello()).status == hello::Status::denied);
  std::string text = content_of(file);
  INFO(text);
  CHECK(has(text, R"("event":"session_started","session":1)"));
  CHECK(has(text, R"("tenant":"a")"));
  CHECK(has(text, R"("program":"prog\"ram")"));
  CHECK(has(text, R"("quota_memory":1073741824)"));
  CHECK_FALSE(has(text, R"("quota_gpus")"));  // no GPU's quota differs
  CHECK(has(text, R"("event":"session_ended","session":1)"));
  CHECK(has(text, R"("bytes_from_client":)"));
  CHECK(has(text, R"("event":"session_denied")"));
  CHECK(has(text, R"("status":"DENIED")"));
  CHECK_FALSE(has(text, a.text));
  CHECK(occurrences(text, "\n") == 3);
  for (int line = 1; line <= 3; ++line)
    CHECK(occurrences(text, "\"seq\":" + std::to_string(line) + ",") == 1);
  CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms(077)) ==
        std::filesystem::perms::none);

  std::filesystem::rename(file, file + ".1");
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reloaded"));
  CHECK(answer(poold, hello_with(a.text)).status == hello::Status::ok);
  CHECK(has(content_of(file), "session_started"));
  CHECK(occurrences(content_of(file + ".1"), "\n") == 3);
}

TEST_CASE("a refused attempt writes at most 512 bytes each to the log and the audit file") {
  constexpr size_t kMostPerAttempt = 512;
  const TemporaryFolder folder;
  const Token a = new_token();
  const std::string file = folder.path() / "audit.json";
  PooldProcess poold(kDevice, {"--config", folder.write("poold.toml", tenant_text("a", a)), "--audit-file",
                               file, "--log-format", "json"});
  REQUIRE(poold.await_log("listening"));
  for (const char byte : {'x', '\x01', '"', '\xff'}) {
    hello::Hello hello = hello_with(std::string(64, 'x'));
    hello.program = std::string(30'000, byte);
    hello.host = std::string(30'000, byte);
    hello.tenant = std::string(3'000, byte);
    const size_t logged = poold.log().size(), audited = content_of(file).size();
    CHECK(answer(poold, hello).status == hello::Status::denied);
    CHECK(eventually([&] { return content_of(file).size() > audited && poold.log().size() > logged; }));
    CHECK(content_of(file).size() - audited <= kMostPerAttempt);
    CHECK(poold.log().size() - logged <= kMostPerAttempt);
  }
}

TEST_CASE("long names of a client are truncated in the log and the audit file and the list of sessions") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "audit.json";
  PooldProcess poold(kDevice, {"--audit-file", file});
  hello::Hello hello = test_hello();
  hello.program = std::string(30'000, 'p');
  hello.host = std::string(30'000, 'h');
  {
    RawClient client(poold.endpoint());
    client.open(hello);
    client.ping();
  }
  CHECK(poold.await_log("session_ended"));
  CHECK(eventually([&] { return has(content_of(file), "session_ended"); }));
  for (const std::string& text : {content_of(file), poold.log()}) {
    CHECK(has(text, std::string(256, 'p')));
    CHECK_FALSE(has(text, std::string(257, 'p')));
    CHECK(has(text, std::string(256, 'h')));
    CHECK_FALSE(has(text, std::string(257, 'h')));
  }
}

TEST_CASE("an audit file or a configuration that cannot be used ends poold with the reason") {
  const TemporaryFolder folder;
  const std::string poold = program_path("poold");
  const Finished audit = run_to_end(
      {poold, "--listen", "tcp://127.0.0.1:0", "--device", kDevice, "--audit-file", "/nowhere/audit"}, {});
  CHECK(audit.status == 1);
  CHECK(has(audit.output, "/nowhere/audit"));
  const std::string config =
      folder.write("poold.toml", "[[tenant]]\nname = 'a'\n[tenant.quota]\nmode = 'soft'\n");
  const Finished quota = run_to_end({poold, "--config", config}, {});
  CHECK(quota.status == 2);
  CHECK(has(quota.output, config + "': tenant 'a': quota.mode: must be one of elastic, hard"));
}
