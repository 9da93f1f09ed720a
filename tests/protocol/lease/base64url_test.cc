#include "protocol/lease/base64url.h"

#include "tests/support/catch.h"

using namespace gpupool::lease;

TEST_CASE("base64url encodes the examples of RFC 4648 and decodes them again", "[lease]") {
  // The RFC's own examples, without padding.
  const std::pair<const char*, const char*> known[] = {
      {"", ""},           {"f", "Zg"},          {"fo", "Zm8"},         {"foo", "Zm9v"},
      {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : known) {
    CHECK(to_base64url(bytes) == text);
    CHECK(from_base64url(text) == std::optional<std::string>(bytes));
  }
  CHECK(to_base64url("\xfb\xff\xfe") == "-__-");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (size_t size = 0; size <= all.size(); ++size)
    CHECK(from_base64url(to_base64url(all.substr(0, size))) == all.substr(0, size));
}

TEST_CASE("rejects text that is not base64url", "[lease]") {
  for (const char* const text : {"Z", "Zm9vY", "Zg==", "Zm 9v", "Zm+v", "Zm/v", "Zm9v\n", "Zm\x80v"})
    CHECK_FALSE(from_base64url(text));
  // Nonzero unused bits would give the same bytes a second encoding.
  CHECK_FALSE(from_base64url("Zh"));
  CHECK_FALSE(from_base64url("Zm9"));
}
