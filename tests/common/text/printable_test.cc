#include "common/text/printable.h"

#include "tests/support/catch.h"

using namespace gpupool;

TEST_CASE("control characters, malformed UTF-8 and changes of direction become question marks") {
  CHECK(printable("train.py") == "train.py");
  CHECK(printable("größe 数 🙂") == "größe 数 🙂");
  CHECK(printable("\x1b[2J\n\x7f") == "?[2J??");
  CHECK(printable("a\xc3") == "a?");
  CHECK(printable("\xff\xfe"
                  "b") == "??b");
  CHECK(printable("\xc0\xaf") == "??");       // overlong
  CHECK(printable("\xed\xa0\x80") == "???");  // a surrogate
  CHECK(printable("\xc2\x9b") == "??");       // C1 control, which terminals interpret
  CHECK(printable("\xe2\x80\xae") == "???");  // right-to-left override
  CHECK(printable("\xf5\x80\x80\x80") == "????");
  CHECK(printable("") == "");
}

TEST_CASE("printable_lines keeps line feeds and replaces other control characters") {
  CHECK(printable_lines("") == "");
  CHECK(printable_lines("one\ntwo\x1b[2J\r\n\n\tthree") == "one\ntwo?[2J?\n\n?three");
  CHECK(printable_lines("a\n") == "a\n");
  CHECK(printable_lines("a\xc3\n\x9b") == "a?\n?");  // a line feed ends a truncated character
}

TEST_CASE("a long message is cut between two characters and ends with dots") {
  const std::string most(kMostMessageBytes, 'm');
  CHECK(printable_message("no room\a") == "no room?");
  CHECK(printable_message(most) == most);
  CHECK(printable_message(most + "m") == std::string(kMostMessageBytes - 3, 'm') + "...");
  const std::string wide = printable_message(std::string(kMostMessageBytes - 4, 'm') + "ö" + most);
  CHECK(wide == std::string(kMostMessageBytes - 4, 'm') + "...");
}
