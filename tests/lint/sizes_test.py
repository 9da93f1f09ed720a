"""Tests scripts/checks/sizes.py and the sizes that functions.py finds."""
import sys
import unittest

from checked_tree import CHECKS, CheckedTree

sys.path.insert(0, str(CHECKS))
from functions import cpp_functions, python_functions  # noqa: E402


def body(lines, indent="  "):
    return "".join(f"{indent}step({index});\n" for index in range(lines))


class Functions(unittest.TestCase):
    def assert_functions(self, expected, text, find=cpp_functions):
        self.assertEqual(expected, [(name, lines) for name, _, lines in find(text)])

    def test_counts_the_lines_between_the_braces(self):
        self.assert_functions([("first", 0), ("second", 3), ("third", 5)],
                              "int first() { return 1; }\nint second(int a,\n           int b) {\n" + body(3) + "}\n"
                              "void third() {\n  if (true) {\n" + body(3) + "  }\n}\n")

    def test_finds_functions_of_namespaces_and_types(self):
        self.assert_functions([("Pool::take", 2), ("a", 1), ("b", 0), ("operator()", 0), ("~Pool", 0)], """
namespace gpupool::server { namespace {
template <class T, size_t N = sizeof(int[2])>
Result<std::map<int, T>> Pool::take(T (*make)(int), int b = int{3}) const noexcept(true) {
  one();
  two();
}
}  // namespace
extern "C" {
struct __attribute__((packed)) Row<int (*)(T)> final : Base<decltype(f())> {
  enum class Kind : uint8_t { one, two };
  alignas(64) std::array<int, size_t(3)> sizes{};
  static auto a(int x) -> int {
    return x;
  }
 public:
  explicit b() : first_{1}, second_(2), Base<int>{} {}
  bool operator()(int x) const { return x < 3 && x > 1; }
  ~Pool() { }
};
}
}
""")

    def test_takes_no_initializer_for_a_function(self):
        self.assert_functions([("compare", 1), ("operator==", 0)], """
const std::vector<int> kTable = {
  f(1),
  f(2),
};
int kCount{g()};
Type kValue = make(1, {2});
const auto compare = [](int a, int b) {
  return a < b;
};
bool operator==(const A& a, const B& b) { return true; }
""")

    def test_ignores_braces_in_comments_strings_and_macros(self):
        self.assert_functions([("text", 6), ("after", 0)], """
#define OPEN(x) \\
  void x() {
void text() {
  a("{", '{', 1'000);  // {
  /* {
     { */
  b(R"ptx({ " {
  {)ptx");
  c('\\'', "\\"{");
}
void after() {}
""")

    def test_reads_both_branches_of_a_conditional(self):
        self.assert_functions([("one", 1), ("two", 2), ("both", 3), ("after", 0)], """
#if A
void one() {
  step();
}
#else
void two() {
  step();
  step();
}
#endif
#ifdef B
void both(int a) {
#else
void both() {
#endif
  step();
  step();
}
void after() {}
""")

    def test_names_tests_by_their_titles(self):
        self.assert_functions([("rejects an oversized request", 1), ("copies", 0)], """
TEST_CASE("rejects an oversized request", "[http]") {
  SECTION("a") { CHECK(true); }
}
SCENARIO(copies) {}
""")

    def test_reads_python(self):
        self.assert_functions([("Pool.take", 2), ("outer", 3), ("outer.inner", 1)],
                              "class Pool:\n  def take(self,\n           b):\n    a()\n    b()\ndef outer():\n  def inner():\n    a()\n  b()\n", python_functions)


class Sizes(CheckedTree):
    check = "sizes.py"

    def list_sizes(self, *rows):
        self.write("scripts/checks/sizes.txt", "# a comment\n" + "".join(f"{row}\n" for row in rows))

    def test_accepts_files_and_functions_up_to_the_limits(self):
        self.write("server/pool.cc", "void take() {\n" + body(60) + "}\n" + "\n" * (400 - 62))
        self.write("protocol/cuda/calls.def", "\n" * 1000)
        self.write("docs/page.md", "\n" * 1000)
        self.assert_passes()

    def test_finds_what_is_larger(self):
        self.write("server/pool.cc", "void Pool::take() {\n" + body(61) + "}\n")
        self.write("server/pool.h", "\n" * 401)
        self.write("tools/run.py", "def run():\n" + body(61).replace(";", ""))
        self.write("tools/run.sh", "\n" * 402)
        self.assert_finds("server/pool.cc: Pool::take: has 61 lines, more than the 60 of a function", "server/pool.h: has 401 lines, more than the 400 of a file",
                          "tools/run.py: run: has 61 lines", "tools/run.sh: has 402 lines")

    def test_accepts_listed_sizes_that_do_not_grow(self):
        self.write("server/pool.cc", "void take() {\n" + body(70) + "}\n" + "\n" * 400)
        self.list_sizes("472 server/pool.cc", "70 server/pool.cc: take")
        self.assert_passes()
        self.write("server/pool.cc", "void take() {\n" + body(69) + "}\n" + "\n" * 400)
        self.assert_passes()
        self.write("server/pool.cc", "void take() {\n" + body(71) + "}\n" + "\n" * 400)
        self.assert_finds("server/pool.cc: grew from 472 to 473 lines", "server/pool.cc: take: grew from 70 to 71 lines")

    def test_finds_rows_that_are_no_longer_needed(self):
        self.write("server/pool.cc", "void take() {\n" + body(60) + "}\n")
        self.list_sizes("70 server/pool.cc: take", "450 server/gone.cc")
        self.assert_finds("scripts/checks/sizes.txt: the row server/pool.cc: take is no longer needed", "scripts/checks/sizes.txt: the row server/gone.cc is no")

    def test_checks_only_the_files_that_are_named(self):
        self.write("server/pool.h", "\n" * 401)
        self.write("server/other.h", "\n" * 401)
        self.list_sizes("450 server/gone.cc")
        self.assert_finds("server/pool.h: has 401 lines", words=("server/pool.h",))
        self.assert_finds("scripts/checks/sizes.txt: the row server/gone.cc", words=("server/gone.cc",))

    def test_writes_the_list(self):
        self.write("server/pool.cc", "void take() {\n" + body(70) + "}\n")
        self.write("server/pool.h", "\n" * 401)
        self.list_sizes("401 server/pool.h", "450 server/gone.cc")
        self.assertEqual((0, ["new: 70 server/pool.cc: take"]), self.run_check("--write"))
        rows = [line for line in (self.root / "scripts/checks/sizes.txt").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual(["70 server/pool.cc: take", "401 server/pool.h"], rows)
        self.assert_passes()


if __name__ == "__main__":
    unittest.main()
