#include "protocol/driver/validity_check.h"

#include <string>
#include <string_view>

#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;

#ifdef GPUPOOL_CUDART_VALIDITY_CHECK

namespace {

std::span<const unsigned char> bytes(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

std::string hex(const cuda::Md2Digest& digest) {
  std::string text;
  for (unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

TEST_CASE("MD2 gives RFC 1319's digests") {
  const auto md2 = [](std::string_view text) { return hex(cuda::md2(bytes(text))); };
  CHECK(md2("") == "8350e5a3e24c153df2275c9f80692773");
  CHECK(md2("a") == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(md2("abc") == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(md2("message digest") == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(md2("abcdefghijklmnopqrstuvwxyz") == "4e8ddff3650292ab5a4108c3aa47940b");
  CHECK(md2("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") ==
        "da33def2a42df13975352846c30338cd");
  CHECK(md2("12345678901234567890123456789012345678901234567890123456789012345678901234567890") ==
        "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST_CASE("HMAC over it gives what RFC 2104's definition gives") {
  // Computes H(K ^ opad, H(K ^ ipad, text)) with md2().
  const std::string key = "Jefe";
  std::string inner(16, '\x36');
  std::string outer(16, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  const auto first = cuda::md2(bytes(inner + "what do ya want for nothing?"));
  const std::string second = outer + std::string(first.begin(), first.end());
  CHECK(cuda::hmac_md2(bytes(key), bytes("what do ya want for nothing?")) == cuda::md2(bytes(second)));
  // Value from an independent implementation.
  CHECK(hex(cuda::hmac_md2(bytes(key), bytes("what do ya want for nothing?"))) ==
        "292f9d34f9e311846de86c495d7adfa2");
}

#endif
