// Tests of the CSV parser and of the positions in its error messages.
#include "scheduler/sim/csv.h"

#include "tests/support/catch.h"

using gpupool::sim::Csv;

namespace {

std::string error_of(const std::string& text) {
  const auto csv = Csv::parse("f.csv", text);
  return csv ? "" : csv.error().message;
}

}  // namespace

TEST_CASE("fields, quotes and line ends") {
  const auto csv = Csv::parse("f", "a,b,c\r\n1,,x y\n\n\"2,\"\"3\n4\",5,\"\"");
  REQUIRE(csv);
  REQUIRE(csv->rows() == 2);
  CHECK(csv->column("b") == 1);
  CHECK(csv->column("d") == -1);
  CHECK(csv->text(0, 0) == "1");
  CHECK(csv->text(0, 1).empty());
  CHECK(csv->text(0, 2) == "x y");
  CHECK(csv->text(1, 0) == "2,\"3\n4");
  CHECK(csv->text(1, 2).empty());
  CHECK(csv->text(1, -1).empty());
  CHECK(Csv::parse("f",
                   "\xef\xbb\xbf"
                   "a\n1")
            ->column("a") == 0);
}

TEST_CASE("numbers are parsed and out-of-range numbers rejected") {
  const auto csv = Csv::parse("f.csv", "n,m\n12,\n-1,x\n99999999999999999999,1.5\n");
  REQUIRE(csv);
  CHECK(*csv->number(0, 0) == 12);
  CHECK(*csv->number_or(0, 1, 7) == 7);
  CHECK(*csv->number_or(0, -1, 8) == 8);
  CHECK(csv->number(0, 1).error().message == "f.csv:2:4: m '' is not an integer");
  CHECK(csv->number(1, 0).error().message == "f.csv:3:1: n '-1' must be at least 0");
  CHECK(csv->number(1, 1).error().message == "f.csv:3:4: m 'x' is not an integer");
  CHECK(csv->number(2, 0, 0, 10).error().message == "f.csv:4:1: n '99999999999999999999' must be 0 to 10");
  CHECK(csv->number(2, 1).error().message == "f.csv:4:22: m '1.5' is not an integer");
  CHECK(csv->needed_column("k").error().message == "f.csv:1:1: missing column 'k'");
}

TEST_CASE("mistakes are named by line and column") {
  CHECK(error_of("") == "f.csv:1:1: missing header line");
  CHECK(error_of("a,,b\n") == "f.csv:1:3: a column without a name");
  CHECK(error_of("a,b,a\n") == "f.csv:1:5: a second column 'a'");
  CHECK(error_of("a,b\n1,2\n1\n") == "f.csv:3:2: 1 fields, but the header names 2");
  CHECK(error_of("a,b\n1,2,3\n") == "f.csv:2:5: 3 fields, but the header names 2");
  CHECK(error_of("a\n\"x\n") == "f.csv:2:1: unterminated quoted field");
  CHECK(error_of("a\n\"x\"y\n") == "f.csv:2:4: text after a closing quotation mark");
  CHECK(error_of("a\nx\"y\n") == "f.csv:2:2: a quotation mark within a field");
  CHECK(error_of("a\nx\ry\n") == "f.csv:2:2: a carriage return within a line");
  CHECK(error_of("a,b\n1,") == "f.csv:2:3: the file ends within a line");
  CHECK(error_of(std::string("a\nx\0y\n", 6)) == "f.csv:2:2: a zero byte");
  CHECK(Csv::read("/nowhere/at/all.csv").error().message == "/nowhere/at/all.csv: No such file or directory");
}
