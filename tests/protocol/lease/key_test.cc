#include "protocol/lease/key.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool::lease;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/gpupool-keys-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string file = path + "/" + name;
    std::ofstream(file) << text;
    ::chmod(file.c_str(), mode);
    return file;
  }
  std::string path;
};

std::string bytes(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out += static_cast<char>(value);
  return out;
}

}  // namespace

TEST_CASE("a signature verifies only its message with its key", "[lease]") {
  const auto key = SigningKey::make(), other = SigningKey::make();
  REQUIRE(key);
  REQUIRE(other);
  const std::string signature = key->sign("a message");
  REQUIRE(signature.size() == 64);
  CHECK(key->public_key().verify("a message", signature));
  CHECK_FALSE(key->public_key().verify("another message", signature));
  CHECK_FALSE(other->public_key().verify("a message", signature));
  CHECK_FALSE(key->public_key().verify("a message", signature.substr(1)));
  CHECK_FALSE(key->public_key().verify("a message", ""));
  for (size_t bit = 0; bit < 8 * signature.size(); ++bit) {
    std::string altered = signature;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(key->public_key().verify("a message", altered));
  }
  CHECK(key->public_key().id().size() == 8);
  CHECK(key->public_key().id() != other->public_key().id());
}

TEST_CASE("the first test vector of RFC 8032 verifies", "[lease]") {
  const PublicKey key({0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe,
                       0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6,
                       0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a});
  CHECK(key.verify("", bytes({0xe5, 0x56, 0x43, 0x00, 0xc3, 0x60, 0xac, 0x72, 0x90, 0x86, 0xe2, 0xcc, 0x80,
                              0x6e, 0x82, 0x8a, 0x84, 0x87, 0x7f, 0x1e, 0xb8, 0xe5, 0xd9, 0x74, 0xd8, 0x73,
                              0xe0, 0x65, 0x22, 0x49, 0x01, 0x55, 0x5f, 0xb8, 0x82, 0x15, 0x90, 0xa3, 0x3b,
                              0xac, 0xc6, 0x1e, 0x39, 0x70, 0x1c, 0xf9, 0xb4, 0x6b, 0xd2, 0x5b, 0xf5, 0xf0,
                              0x59, 0x5b, 0xbe, 0x24, 0x65, 0x51, 0x41, 0x43, 0x8e, 0x7a, 0x10, 0x0b})));
}

TEST_CASE("keys are written to files and read back", "[lease]") {
  const Folder folder;
  const auto key = SigningKey::make();
  REQUIRE(key);
  const std::string file = folder.path + "/key.pem";
  REQUIRE(key->write(file));
  struct stat about {};
  REQUIRE(::stat(file.c_str(), &about) == 0);
  CHECK((about.st_mode & 0777) == 0600);
  CHECK_FALSE(key->write(file));  // never overwrites a key

  const auto again = SigningKey::read(file);
  REQUIRE(again);
  CHECK(again->public_key() == key->public_key());
  CHECK(key->public_key().verify("x", again->sign("x")));

  const auto its_public = PublicKey::read(folder.write("public.pem", key->public_key().pem()));
  REQUIRE(its_public);
  CHECK(*its_public == key->public_key());
}

TEST_CASE("rejects a private key given as public key and says how to print the public one", "[lease]") {
  const Folder folder;
  const std::string file = folder.path + "/key.pem";
  REQUIRE(SigningKey::make()->write(file));
  const auto refused = PublicKey::read(file);
  REQUIRE(!refused);
  CHECK_THAT(refused.error().message,
             Catch::Matchers::ContainsSubstring("private key") &&
                 Catch::Matchers::ContainsSubstring("pool-scheduler --key " + file + " --print-public-key"));
}

TEST_CASE("an unusable key file is rejected with the reason", "[lease]") {
  const Folder folder;
  const auto key = SigningKey::make();
  REQUIRE(key);
  CHECK_THAT(PublicKey::read(folder.path + "/none").error().message,
             Catch::Matchers::ContainsSubstring("No such file"));
  CHECK_THAT(PublicKey::read(folder.write("text", "hello\n")).error().message,
             Catch::Matchers::ContainsSubstring("not an Ed25519 public key"));
  CHECK_FALSE(SigningKey::read(folder.write("public", key->public_key().pem())));
  REQUIRE(key->write(folder.path + "/open"));
  ::chmod((folder.path + "/open").c_str(), 0644);
  CHECK_THAT(SigningKey::read(folder.path + "/open").error().message,
             Catch::Matchers::ContainsSubstring("chmod 600"));
  // A key of another kind.
  const std::string rsa = folder.path + "/ec.pem";
  if (std::system(("openssl ecparam -name prime256v1 -genkey -noout -out " + rsa + " 2>/dev/null").c_str()) ==
      0) {
    ::chmod(rsa.c_str(), 0600);
    CHECK_THAT(SigningKey::read(rsa).error().message,
               Catch::Matchers::ContainsSubstring("Ed25519 private key"));
  }
}
