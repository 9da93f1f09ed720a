"""Tests scripts/checks/security.py."""
import unittest

from checked_tree import CheckedTree

HEADINGS = ("A tenant: a client", "A compromised worker", "An unauthenticated peer", "Another user of the GPU host, or of the client's machine",
            "The network", "Another host or scheduler that has been compromised", "A web page")
TABLE = "| attack | defence | tests |\n|---|---|---|\n"
FOUND = "## Vulnerabilities found in reviews\n\n| vulnerability | test |\n|---|---|\n"
LIMITS = "## Known limits\n\n- **The GPU itself.**\n"


class Security(CheckedTree):
    check = "security.py"

    def setUp(self):
        super().setUp()
        for name in ("tests/e2e/tls_test.cc", "tests/fuzz/fuzz_hello.cc", "tests/hardening/hardening_test.py", "tests/README.md"):
            self.write(name)

    def page(self, row="| reads | TLS | `tests/e2e/tls_test.cc`, `tests/fuzz/fuzz_hello.cc` |", found="| a hole | `tests/hardening/hardening_test.py` |",
             headings=HEADINGS, limits=LIMITS):
        defences = "\n".join(f"### {heading}\n\n{TABLE}{row}\n" for heading in headings)
        self.write("docs/security.md", f"# Security\n\n## Defences\n\n{defences}\n{FOUND}{found}\n\n{limits}")

    def test_accepts_rows_with_tests(self):
        self.page()
        self.assert_passes()

    def test_finds_a_defence_without_a_test(self):
        self.page("| reads | TLS (`tls://`) | |", headings=HEADINGS)
        self.assert_finds(*["docs/security.md: row 'reads' names no test"] * len(HEADINGS))

    def test_finds_tests_that_do_not_exist(self):
        self.page(found="| a hole | `tests/e2e/gone_test.cc` |\n| another | `tests/README.md` |\n| a third | |")
        self.assert_finds("docs/security.md: row 'a hole' names tests/e2e/gone_test.cc, which is no tracked file",
                          "docs/security.md: row 'another' names tests/README.md, which is no test", "docs/security.md: row 'a third' names no test")

    def test_a_vulnerability_may_be_open(self):
        self.page(found='| a hole | open: see "Known limits" |')
        self.assert_passes()

    def test_finds_a_missing_attacker(self):
        self.page(headings=HEADINGS[1:])
        self.assert_finds("docs/security.md: has no table of defences against: tenant")

    def test_finds_missing_limits(self):
        self.page(limits="")
        self.assert_finds("docs/security.md: has no section 'Known limits'")


if __name__ == "__main__":
    unittest.main()
