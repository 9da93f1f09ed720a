// Attacks on suspended sessions: servers that send their clients elsewhere, and replaced files.
#include <unistd.h>

#include <fstream>

#include "server/suspension/record_file.h"
#include "tests/e2e/suspended_program.h"
#include "tests/server/suspension/memory_file.h"
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

// The contents of an encrypted file in one that is not, as somebody may forge it who knows the program.
std::string without_encryption(const std::string& encrypted) {
  const MemoryFile from(std::as_bytes(std::span(encrypted))), to;
  const auto secret = suspension::secret_of(std::string(32, 'k'));
  REQUIRE(secret);
  auto reader = suspension::RecordReader::open(from.descriptor(), *secret);
  auto writer = suspension::RecordWriter::begin(to.descriptor(), std::nullopt);
  REQUIRE(reader);
  REQUIRE(writer);
  for (auto kind = suspension::RecordKind::header; kind != suspension::RecordKind::end;) {
    const auto record = reader->next();
    REQUIRE(record);
    kind = record->kind;
    REQUIRE(writer->append(kind, record->payload));
  }
  std::string forged(static_cast<size_t>(to.size()), '\0');
  REQUIRE(::pread(to.descriptor(), forged.data(), forged.size(), 0) == static_cast<ssize_t>(forged.size()));
  return forged;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Runs poold with the store's options, and expects that it does not start.
std::string refusal_of(const Store& store) {
  std::vector<std::string> words{program_path("poold"), "--device",       test_device(), "--listen",
                                 "tcp://127.0.0.1:0",   "--admin-socket", "none"};
  for (const std::string& word : store.options()) words.push_back(word);
  const Finished refused = run_to_end(words);
  INFO(refused.output);
  CHECK(refused.status == 1);
  return refused.output;
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
  CHECK_THAT(migrated.output, ContainsSubstring("an encrypted session moves to tls:// addresses only"));
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

TEST_CASE("a file that is not encrypted is not resumed in place of an encrypted one") {
  Changing changing(4);  // its server accepts files that are not encrypted, but not in place of this one
  changing.expect_suspended({"--to", "disk", "--encrypt"});
  const std::string good = content_of(changing.path);
  write_file(changing.path, without_encryption(good));
  const Json reply = changing.resume();
  INFO(reply.dump());
  CHECK(reply["resumed"] == false);
  CHECK_THAT(reply["reason"].get<std::string>(), ContainsSubstring("no longer encrypted"));
  write_file(changing.path, good);
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

TEST_CASE("poold with a key encrypts all files on disk and accepts no others") {
  Changing changing(4, {kOnlyEncrypted});
  changing.expect_suspended({"--to", "disk"});
  CHECK(sessions_of(*changing.pool)[0]["suspended_encrypted"] == true);
  const std::string good = content_of(changing.path), forged = without_encryption(good);
  const std::string elsewhere = changing.store.folder.path() / "forged";
  write_file(elsewhere, forged);
  {
    Pool other({}, {"--resume-timeout", "30", "--suspended-key", changing.store.folder.path() / "key"});
    const Finished refused = pool_admin(other, {"resume", "--file", elsewhere});
    INFO(refused.output);
    CHECK(refused.status == 1);
    CHECK_THAT(refused.output, ContainsSubstring("not encrypted"));
  }
  write_file(changing.path, forged);
  restart(changing, {kOnlyEncrypted});
  CHECK(changing.pool->poold().await_log("suspended_file_left"));
  CHECK(sessions_of(*changing.pool).empty());
  write_file(changing.path, good);
  restart(changing, {kOnlyEncrypted});
  find_number(changing);
  changing.app.signal(SIGCONT);
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

TEST_CASE("poold does not start with a key of suspended sessions that other users can read or write") {
  const Store store;
  const std::string key = store.folder.path() / "key";
  for (const auto& [mode, why] : {std::pair(0644u, "other users can read it"),
                                  {0604u, "other users can read it"},
                                  {0620u, "other users can write it"},
                                  {0602u, "other users can write it"}}) {
    std::filesystem::permissions(key, std::filesystem::perms(mode));
    const std::string refusal = refusal_of(store);
    INFO(std::oct << mode << ": " << refusal);
    CHECK_THAT(refusal, ContainsSubstring("--suspended-key " + key));
    CHECK_THAT(refusal, ContainsSubstring(why));
  }
}
