// Programs over tls:// with tokens: they work as over tcp://, and clients without a valid token are rejected.
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"

using namespace gpupool::testing;

namespace {

class SecurePool {
 public:
  // `servers`: number of poolds; all accept the same token.
  explicit SecurePool(int servers = 1) : authority_("authority"), token_(make_token()) {
    const Authority::Files files = authority_.sign("server", "IP:127.0.0.1");
    for (int i = 0; i < servers; ++i) {
      pools_.push_back(std::make_unique<Pool>(
          Environment{{"SOFTGPU_MEMORY", "1GiB"}},
          std::vector<std::string>{"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                                   "--tls-key", files.key, "--config", folder_.path() / "poold.toml"}));
    }
  }

  std::string url() {
    std::string urls;
    for (const auto& pool : pools_)
      urls +=
          (urls.empty() ? "tls://127.0.0.1:" : ",tls://127.0.0.1:") + std::to_string(pool->poold().port());
    return urls;
  }
  std::string token_file() const { return folder_.path() / "token"; }
  Environment environment() {
    return pool().through({{"GPUPOOL", url()},
                           {"GPUPOOL_TLS_CA", authority_.certificate()},
                           {"GPUPOOL_TOKEN_FILE", token_file()}});
  }
  Pool& pool() { return *pools_[0]; }
  const std::string& token() const { return token_; }

 private:
  std::string make_token() {
    const Finished made = run_to_end({program_path("poold"), "--make-token"}, {});
    const size_t end = made.output.find('\n');
    const size_t next = made.output.find('\n', end + 1);
    folder_.write("token", made.output.substr(0, end + 1));
    std::filesystem::permissions(token_file(), std::filesystem::perms::owner_read);
    folder_.write("poold.toml", "[[tenant]]\nname = 'team'\n" + made.output.substr(end + 1, next - end));
    return made.output.substr(0, end);
  }

  TemporaryFolder folder_;
  Authority authority_;
  std::string token_;
  std::vector<std::unique_ptr<Pool>> pools_;
};

}  // namespace

TEST_CASE("programs give the same results over tls with large copies too") {
  SecurePool secure;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"copies"},
                                             {"threads_with_streams"},
                                             {"pinned_memory_both_ways"},
                                             {"bandwidth", "16777216", "random"}}) {
    std::vector<std::string> command{driver_app()};
    command.insert(command.end(), words.begin(), words.end());
    const Finished app = run_patiently(command, secure.environment());
    INFO(app.output);
    CHECK(app.status == 0);
  }
  CHECK(secure.pool().poold().await_log("tls (TLS_AES_128_GCM_SHA256)"));
  CHECK(secure.pool().poold().log().find("tenant=team ") != std::string::npos);
}

TEST_CASE("programs use the devices of two servers over tls as those of one") {
  SecurePool secure(2);
  Pool both_devices(Environment{{"SOFTGPU_DEVICES", "2"}, {"SOFTGPU_MEMORY", "1GiB"}});
  for (const std::string scenario : {"copies_between_devices", "a_chain_over_two_devices"}) {
    const std::vector<std::string> words{driver_app(), scenario};
    const Finished direct = run_patiently(words, both_devices.directly());
    const Finished app = run_patiently(words, secure.environment());
    INFO(app.output);
    CHECK(direct.status == 0);
    CHECK(app.status == 0);
    CHECK(app.output == direct.output);
  }
}

TEST_CASE("pool-run takes a file with the token and says what to do without a token or trusted authority") {
  SecurePool secure;
  Environment environment = secure.environment();
  environment.erase("GPUPOOL_TOKEN_FILE");
  const std::vector<std::string> app{driver_app(), "fills"};
  std::vector<std::string> with_file{program_path("pool-run"), "--server",          secure.url(),
                                     "--token-file",           secure.token_file(), "--"};
  with_file.insert(with_file.end(), app.begin(), app.end());
  const Finished good = run_patiently(with_file, environment);
  INFO(good.output);
  CHECK(good.status == 0);

  const Finished nobody = run_patiently(app, environment);
  CHECK(nobody.status != 0);
  CHECK(nobody.output.find("GPUPOOL_TOKEN_FILE") != std::string::npos);

  environment["GPUPOOL_TOKEN"] = secure.token();
  CHECK(run_patiently(app, environment).status == 0);
  environment.erase("GPUPOOL_TLS_CA");
  const Finished unsure = run_patiently(app, environment);
  CHECK(unsure.status != 0);
  CHECK(unsure.output.find("GPUPOOL_TLS_CA") != std::string::npos);
  environment = secure.environment();
  environment["GPUPOOL_TRANSPORT"] = "rdma";
  CHECK(run_patiently(app, environment).output.find("rdma is not encrypted") != std::string::npos);

  std::filesystem::permissions(secure.token_file(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::others_read);
  const Finished open = run_patiently(app, secure.environment());
  CHECK(open.status == 0);
  CHECK(open.output.find("chmod 600") != std::string::npos);
  std::filesystem::permissions(secure.token_file(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::group_write);
  const Finished altered = run_patiently(app, secure.environment());
  CHECK(altered.status != 0);
  CHECK(altered.output.find("not used, because it is writable by other users") != std::string::npos);
  CHECK(open.output.find(secure.token()) == std::string::npos);
  CHECK(secure.pool().poold().log().find(secure.token()) == std::string::npos);
}
