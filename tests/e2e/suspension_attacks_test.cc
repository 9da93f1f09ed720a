// Attacks on suspended sessions: servers that send their clients elsewhere.
#include "tests/e2e/suspended_program.h"
#include "tests/support/certificates.h"
#include "tests/support/contains.h"
#include "tests/support/other_service.h"

using namespace gpupool;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;

namespace {

// Starts the program's server anew, with the same folder. The program does not notice.
void restart(Changing& changing, std::vector<std::string> options, const std::string& scheme = "tcp") {
  options.insert(options.end(),
                 {"--listen", scheme + "://127.0.0.1:" + std::to_string(changing.pool->poold().port())});
  changing.app.signal(SIGSTOP);
  CHECK(changing.pool->poold().stop() == 0);
  changing.pool.reset();
  changing.pool.emplace(Environment{}, changing.store.options(options));
}

void find_number(Changing& changing) {
  REQUIRE(changing.pool->poold().await_log("suspended_session_found"));
  changing.number = std::to_string(sessions_of(*changing.pool)[0]["number"].get<uint64_t>());
}

}  // namespace

// A server that was started anew does not know yet how the client is connected, and so names it any address,
// as a server that lies would.
TEST_CASE("the client of an encrypted session shows its token at no address that is not encrypted") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit";
  std::vector<std::string> options{"--tls-certificate", files.certificate, "--tls-key",
                                   files.key,           "--audit-file",    audit};
  std::vector<std::string> first = options;
  first.insert(first.end(), {"--listen", "tls://127.0.0.1:0"});
  Changing changing(4, first, {{"GPUPOOL_TLS_CA", authority.certificate()}});
  const OtherService listening(OtherService::Manner::silent);
  const std::string address = "tcp://127.0.0.1:" + std::to_string(listening.port());
  const Finished migrated = pool_admin(*changing.pool, {"migrate", "1", "--to", address});
  CHECK(migrated.status == 1);
  CHECK_THAT(migrated.output, ContainsSubstring("encrypted sessions cannot migrate"));
  CHECK(listening.untouched());
  changing.expect_suspended({"--to", "disk"});
  const auto resume_at = [&](const std::string& at) {
    return admin_words(changing.pool->poold(), {"resume", changing.number, "--at", at, "--timeout", "120"});
  };
  for (const std::string& at :
       {address, std::string("shm://@gpupool-9700"), std::string("rdma://127.0.0.1")}) {
    const Finished refused = run_patiently(resume_at(at), {});
    CHECK(refused.status == 1);
    CHECK_THAT(refused.output, ContainsSubstring("it goes on at tls:// addresses only"));
  }
  restart(changing, options, "tls");
  find_number(changing);
  Process away(resume_at(address), {});
  const bool asked = eventually([&] { return content_of(audit).find("at " + address) != std::string::npos; });
  changing.app.signal(SIGCONT);
  CHECK(asked);
  CHECK(away.wait(kLongPatience) == 1);
  INFO(away.output());
  CHECK_THAT(away.output(), ContainsSubstring("an encrypted session goes on at tls:// addresses only"));
  CHECK(listening.untouched());
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

TEST_CASE("a session goes on at no socket of the client's machine that its server names") {
  Changing changing(4);
  changing.expect_suspended();
  const Finished refused =
      pool_admin(*changing.pool, {"resume", changing.number, "--at", "shm://@gpupool-1"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.output, ContainsSubstring("at tls:// and tcp:// addresses only"));
  changing.expect_resumed();
  changing.expect_nothing_lost();
}
