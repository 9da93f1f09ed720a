// Tests poold with tls://: server and client certificates, and the messages of failures.
#include <signal.h>

#include <filesystem>

#include "protocol/control/hello_exchange.h"
#include "tests/server/fake_device_library.h"
#include "tests/server/processor_time.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr const char* kNames = "IP:127.0.0.1,DNS:localhost";

std::vector<std::string> options_for(const Authority::Files& files, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                           "--tls-key", files.key});
  return more;
}

transport::Endpoint at(const PooldProcess& poold, const std::string& scheme = "tls",
                       const std::string& host = "127.0.0.1") {
  return {scheme, host, poold.port()};
}

// Returns the reason why the client gets no session; empty if it gets one.
std::string failure(const transport::Endpoint& endpoint, const transport::TlsOptions& tls,
                    const std::string& token = "") {
  transport::Options options;
  options.tls = tls;
  auto connection = transport::connect(endpoint, options);
  if (!connection) return connection.error().message;
  hello::Hello hello = test_hello();
  hello.token = token;
  const auto reply = hello::exchange(**connection, hello, transport::Clock::now() + std::chrono::seconds(20));
  return reply ? "" : reply.error().message;
}

transport::TlsOptions trusting(const Authority& authority, const Authority::Files& own = {}) {
  return {.ca = authority.certificate(), .certificate = own.certificate, .key = own.key, .secret = {}};
}

}  // namespace

TEST_CASE("a session over TLS, with the server known by its certificate") {
  const Authority authority("authority");
  PooldProcess poold(kDevice, options_for(authority.sign("server", kNames)));
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    transport::Options options;
    options.tls = trusting(authority);
    RawClient client(at(poold, "tls", host), options);
    CHECK(client.open().devices.size() == 2);
    CHECK(client.connection().carrier() == "tls (TLS_AES_128_GCM_SHA256)");
    for (int i = 0; i < 100; ++i) client.ping();
    client.close();
  }
  CHECK(poold.await_log("the client disconnected", 2));
  CHECK(has(poold.log(), "transport=tls"));
}

TEST_CASE("a client refuses a server that it cannot be sure of, and says what to do") {
  const Authority authority("authority"), other("other");
  struct Case {
    Authority::Files files;
    transport::TlsOptions client;
    const char* said;
  };
  const auto good = authority.sign("server", kNames);
  const Case cases[] = {
      {good, trusting(other), "GPUPOOL_TLS_CA"},
      {good, {}, "GPUPOOL_TLS_CA"},
      {authority.sign("127.0.0.1", "DNS:gpu.example"), trusting(authority), "not issued for '127.0.0.1'"},
      {authority.sign("127.0.0.1"), trusting(authority), "not issued for '127.0.0.1'"},
      {authority.sign("server", kNames, 0), trusting(authority), "expired"},
      {good,
       {.ca = "/nowhere/ca.pem", .certificate = {}, .key = {}, .secret = {}},
       "'/nowhere/ca.pem' cannot be used"},
      {good,
       {.ca = {}, .certificate = good.certificate, .key = {}, .secret = {}},
       "set both GPUPOOL_TLS_CERT and GPUPOOL_TLS_KEY"},
      {good,
       {.ca = {}, .certificate = good.certificate, .key = authority.sign("x").key, .secret = {}},
       "private key"}};
  for (const Case& wrong : cases) {
    PooldProcess poold(kDevice, options_for(wrong.files));
    const std::string why = failure(at(poold), wrong.client);
    INFO(why);
    CHECK(has(why, wrong.said));
    CHECK_FALSE(has(why, "\n"));
    CHECK_FALSE(has(poold.log(), "session_started"));
  }
}

TEST_CASE("a client with the wrong scheme of tcp:// and tls:// is told the right one") {
  const Authority authority("authority");
  PooldProcess encrypted(kDevice, options_for(authority.sign("server", kNames)));
  CHECK(has(failure(at(encrypted, "tcp"), {}), "use tls:// instead of tcp://"));
  CHECK(failure(at(encrypted), trusting(authority)) == "");
  PooldProcess plain(kDevice);
  const std::string why = failure(at(plain), trusting(authority));
  INFO(why);
  CHECK(has(why, "use tcp://"));
  CHECK(failure(at(plain, "tcp"), {}) == "");
}

TEST_CASE("a client's certificate says which tenant it is") {
  const Authority servers("servers"), clients("clients"), strangers("strangers");
  const TemporaryFolder folder;
  const std::string config = folder.write("poold.toml",
                                          "[[tenant]]\nname = 'a'\ncertificates = ['team-a']\n"
                                          "[[tenant]]\nname = 'b'\ncertificates = ['b.example']\n");
  PooldProcess poold(kDevice, options_for(servers.sign("server", kNames),
                                          {"--config", config, "--tls-client-ca", clients.certificate()}));
  CHECK(failure(at(poold), trusting(servers, clients.sign("team-a"))) == "");
  CHECK(poold.await_log("tenant=a "));
  CHECK(failure(at(poold), trusting(servers, clients.sign("whoever", "DNS:b.example"))) == "");
  CHECK(poold.await_log("tenant=b "));
  CHECK(has(failure(at(poold), trusting(servers)), "GPUPOOL_TLS_CERT"));
  CHECK(has(failure(at(poold), trusting(servers, clients.sign("team-c"))), "authentication failed"));
  CHECK(has(failure(at(poold), trusting(servers, strangers.sign("team-a"))),
            "rejected this client's certificate"));
  const std::string why = failure(at(poold), trusting(servers, clients.sign("team-a", "", 0)));
  INFO(why << poold.log());
  CHECK(has(why, "rejected this client's certificate"));
}

TEST_CASE("refusals are sent over TLS") {
  const Authority authority("authority");
  PooldProcess poold(kDevice, options_for(authority.sign("server", kNames), {"--max-sessions", "1"}));
  transport::Options options;
  options.tls = trusting(authority);
  RawClient session(at(poold), options);
  session.open();
  CHECK(has(failure(at(poold), trusting(authority)), "session slots are in use"));
  RawClient bulk(at(poold), options);
  hello::Hello hello = test_hello();
  hello.session_id = std::string(16, 's');
  hello.bulk_token = std::string(32, 'b');
  bulk.send_hello(hello);
  CHECK(bulk.receive_reply().status == hello::Status::denied);
  session.ping();
}

TEST_CASE("a renewed certificate is used after SIGHUP, a broken one is not") {
  const Authority authority("authority"), renewed("renewed");
  const TemporaryFolder folder;
  const Authority::Files files{folder.path() / "server.pem", folder.path() / "server.key"};
  const auto install = [&](const Authority::Files& from) {
    std::filesystem::copy_file(from.certificate, files.certificate,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(from.key, files.key, std::filesystem::copy_options::overwrite_existing);
  };
  install(authority.sign("server", kNames));
  PooldProcess poold(kDevice, options_for(files, {"--config", folder.write("poold.toml", "")}));
  folder.write("server.pem", "nonsense");
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reload_failed"));
  CHECK(failure(at(poold), trusting(authority)) == "");
  install(renewed.sign("server", kNames));
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reloaded"));
  CHECK(failure(at(poold), trusting(renewed)) == "");
  CHECK(has(failure(at(poold), trusting(authority)), "GPUPOOL_TLS_CA"));
}

TEST_CASE(
    "a renewed certificate is used without a signal once both of its files are written and no session is "
    "lost") {
  const Authority authority("authority"), renewed("renewed");
  const TemporaryFolder folder;
  const Authority::Files files{folder.path() / "server.pem", folder.path() / "server.key"};
  const auto install = [](const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  };
  const auto first = authority.sign("server", kNames), second = renewed.sign("server", kNames);
  install(first.certificate, files.certificate);
  install(first.key, files.key);
  PooldProcess poold(kDevice, options_for(files, {"--tls-interval", "0.2"}));
  transport::Options options;
  options.tls = trusting(authority);
  RawClient session(at(poold), options);
  session.open();
  install(second.certificate, files.certificate);  // certificate without its key
  CHECK(poold.await_log("certificate_not_renewed"));
  CHECK(failure(at(poold), trusting(authority)) == "");
  install(second.key, files.key);
  CHECK(poold.await_log("certificate_renewed"));
  CHECK(failure(at(poold), trusting(renewed)) == "");
  CHECK(has(failure(at(poold), trusting(authority)), "GPUPOOL_TLS_CA"));
  session.ping();
  install(first.certificate, files.certificate);
  install(first.key, files.key);
  poold.process().signal(SIGHUP);  // also without --config
  CHECK(poold.await_log("certificate_renewed", 2));
  CHECK(failure(at(poold), trusting(authority)) == "");
}

TEST_CASE("poold says which of its TLS files it cannot use") {
  const Authority authority("authority");
  const auto good = authority.sign("server", kNames), other = authority.sign("other", kNames);
  const auto start = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {program_path("poold"), "--device", kDevice, "--listen", "tls://127.0.0.1:0"});
    return run_to_end(options, {});
  };
  const Finished none = start({});
  CHECK(none.status == 2);
  CHECK(has(none.output, "--tls-certificate"));
  const Finished missing = start({"--tls-certificate", "/nowhere/server.pem", "--tls-key", good.key});
  CHECK(missing.status == 1);
  CHECK(
      has(missing.output, "'/nowhere/server.pem' cannot be used as a certificate (PEM): it cannot be read"));
  const Finished mixed = start({"--tls-certificate", good.certificate, "--tls-key", other.key});
  CHECK(mixed.status == 1);
  CHECK(has(mixed.output, "'" + other.key + "' cannot be used as the private key of"));
}

TEST_CASE(
    "a key that others can read, and a configuration that they can write, are refused at the start and on "
    "SIGHUP") {
  const Authority authority("authority");
  const auto files = authority.sign("server", kNames);
  const TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "");
  const auto permit = [](const std::string& file, unsigned mode) {
    std::filesystem::permissions(file, std::filesystem::perms(mode));
  };
  std::vector<std::string> words =
      options_for(files, {"--device", kDevice, "--admin-socket", "none", "--config", config});
  words.insert(words.begin(), program_path("poold"));
  const auto refused = [&](int status, const std::string& file, const std::string& why) {
    const Finished finished = run_to_end(words);
    INFO(finished.output);
    return finished.status == status && has(finished.output, "refusing to use '" + file + "': " + why);
  };
  permit(files.key, 0604);
  CHECK(refused(1, files.key, "other users can read it; run chmod 600"));
  permit(files.key, 0602);
  CHECK(refused(1, files.key, "other users can write it"));
  permit(files.key, 0600);
  permit(config, 0666);
  CHECK(refused(2, config, "other users can write it"));
  permit(config, 0644);

  PooldProcess poold(kDevice, options_for(files, {"--config", config}));
  permit(files.key, 0644);
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reload_failed", 1));
  permit(files.key, 0600);
  permit(config, 0662);
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reload_failed", 2));
  CHECK(failure(at(poold), trusting(authority)) == "");
  permit(config, 0644);
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reloaded"));
}

TEST_CASE("a client does not use a key that others can read") {
  const Authority authority("authority");
  const PooldProcess poold(kDevice, options_for(authority.sign("server", kNames)));
  const auto files = authority.sign("client");
  transport::TlsOptions tls = trusting(authority);
  tls.certificate = files.certificate;
  tls.key = files.key;
  CHECK(failure(at(poold), tls) == "");
  std::filesystem::permissions(files.key, std::filesystem::perms(0604));
  CHECK(has(failure(at(poold), tls), "refusing to use '" + files.key + "': other users can read it"));
}

TEST_CASE("poold listens beyond loopback only on tls:// with credentials") {
  const Authority authority("authority");
  const auto files = authority.sign("server", kNames);
  const TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "[[tenant]]\nname = 'a'\ncertificates = ['a']\n");
  const auto with = [&](const std::string& listen, std::vector<std::string> more) {
    more.insert(more.end(),
                {"--listen", listen, "--tls-certificate", files.certificate, "--tls-key", files.key});
    return more;
  };
  const auto refused = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words{program_path("poold"), "--device", kDevice};
    words.insert(words.end(), options.begin(), options.end());
    const Finished finished = run_to_end(words, {});
    return finished.status == 1 && has(finished.output, "must use tls://");
  };
  CHECK(refused(with("tls://0.0.0.0:0", {})));
  CHECK(refused(with("tcp://0.0.0.0:0", {"--config", config})));
  PooldProcess poold(kDevice, with("tls://0.0.0.0:0", {"--config", config}));
  folder.write("poold.toml", "");
  poold.process().signal(SIGHUP);
  CHECK(poold.await_log("reload_failed"));
  CHECK(has(failure(at(poold), trusting(authority)), "GPUPOOL_TLS_CERT"));
}

TEST_CASE("TLS handshakes do not block the thread that schedules GPU turns") {
  const Authority authority("authority");
  PooldProcess poold(kDevice, options_for(authority.sign_costly("server", kNames)));
  transport::Options options;
  options.tls = trusting(authority);
  RawClient(at(poold), options).open();
  const ProcessorTime before = processor_time(poold.pid());
  for (int i = 0; i < 50; ++i) {
    RawClient client(at(poold), options);
    client.send(std::string(sizeof(wire::Preamble), 'x'));  // not a hello
    REQUIRE(client.await_end());
  }
  const ProcessorTime after = processor_time(poold.pid());
  const uint64_t main = after.main - before.main, others = after.all - before.all - main;
  if (before.main == 0) return report_skip("this kernel does not tell threads' processor time");
  CHECK(main < others);
}
