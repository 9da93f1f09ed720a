#include "protocol/images/name.h"

#include <string>
#include <vector>

#include "protocol/wire/images.h"
#include "tests/support/catch.h"

using namespace gpupool;

namespace {

std::string hex(const wire::ImageDigest& digest) {
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("an image's name is the SHA-256 of its bytes") {
  CHECK(hex(image::digest({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(image::digest(bytes("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("a proof is the SHA-256 of the nonce and the bytes behind it") {
  const std::string text = "abc";
  const std::string letters(32, 'n');
  image::Nonce nonce;
  nonce.fill(std::byte{'n'});
  CHECK(image::proof(nonce, bytes(text)) == image::digest(bytes(letters + text)));
  nonce[31] = std::byte{0};
  CHECK(image::proof(nonce, bytes(text)) != image::digest(bytes(letters + text)));
}

TEST_CASE("one pass gives the same digests for every length") {
  image::Nonce nonce{};
  for (const size_t size : {0, 1, 63, 64, 262'143, 262'144, 262'145, 1'000'003}) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
    const wire::ImageName name = image::name(nonce, bytes(text));
    CHECK(name.size == size);
    CHECK(name.digest == image::digest(bytes(text)));
    CHECK(name.proof == image::proof(nonce, bytes(text)));
    CHECK(name.proof != name.digest);
  }
}
