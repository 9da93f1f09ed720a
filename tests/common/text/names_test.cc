#include "common/text/names.h"

#include "tests/support/catch.h"

using namespace gpupool;

TEST_CASE("long names are cut to 256 bytes, between two characters") {
  CHECK(cut_name("train.py") == "train.py");
  CHECK(cut_name(std::string(256, 'a')) == std::string(256, 'a'));
  CHECK(cut_name(std::string(257, 'a')) == std::string(256, 'a'));
  CHECK(cut_name(std::string(255, 'a') + "ö") == std::string(255, 'a'));
  CHECK(cut_name(std::string(254, 'a') + "ö") == std::string(254, 'a') + "ö");
  CHECK(cut_name(std::string(253, 'a') + "🙂") == std::string(253, 'a'));
  const std::string no_text(4096, '\x80');
  CHECK(cut_name(no_text).size() >= 253);
  CHECK(cut_name(no_text).size() <= 256);
}

TEST_CASE("brief names have at most 64 bytes and no characters that a log escapes") {
  CHECK(brief_name("train.py --fast") == "train.py --fast");
  CHECK(brief_name("gr\"\\\n\x7f\x01") == "gr?????");
  CHECK(brief_name("größe") == "gr????e");
  CHECK(brief_name(std::string(65'536, '\0')) == std::string(64, '?'));
}
