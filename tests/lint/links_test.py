"""Tests scripts/checks/links.py."""
import unittest

from checked_tree import CheckedTree


class Links(CheckedTree):
    check = "links.py"

    def setUp(self):
        super().setUp()
        for name in ("server/pool.cc", "server/worker/calls.def", "server/worker/copy_test.cc", "client/run.h"):
            self.write(name)
        self.write("docs/guide.md", "# Guide\n## Set up `poold`, twice\n## Twice\n## Twice\n")

    def test_accepts_links_and_paths_that_exist(self):
        self.write("docs/page.md", "\n".join((
            "[a](guide.md) [b](../server) [c](guide.md#set-up-poold-twice) [d](guide.md#twice-1) [e](#top) [f](https://example.org/x.md)",
            "# Top", "`server/pool.cc`, `server/worker/`, `server/*/calls.def`, `server/{pool.cc,worker}`, `tests/FOLDER/x.cc`, `server/NAME.cc`",
            "[ref]: guide.md", "", "    server/pool.cc --option", "", "`cuda.h` `[x](not_a_link.md)`")))
        self.write("server/README.md", "- `pool.cc`, `calls.def`: here and below.\n- `worker/`: a folder.\nTests: `copy_test.cc`, `run.h`.\n")
        self.assert_passes()

    def test_finds_dead_links(self):
        self.write("docs/page.md", "[a](missing.md) ![b](../server/missing.png)\n\n[c]: gone/\n[d](../../outside.md)\n")
        self.assert_finds("docs/page.md: links to missing.md, which", "docs/page.md: links to ../server/missing.png, which", "docs/page.md: links to gone/, which",
                          "docs/page.md: links to ../../outside.md, which")

    def test_finds_dead_anchors(self):
        self.write("docs/page.md", "# Here\n[a](guide.md#thrice) [b](#there) [c](#here) [d](guide.md#twice-2)\n")
        self.assert_finds("docs/page.md: links to guide.md#thrice: docs/guide.md has no such heading", "docs/page.md: links to #there: docs/page.md has no",
                          "docs/page.md: links to guide.md#twice-2: docs/guide.md has no")

    def test_finds_dead_paths_in_backticks_and_code_blocks(self):
        self.write("docs/page.md", "`server/gone.cc`, `server/*/gone.def` and `server/{pool,gone}.cc`\n\n    server/gone_too.sh --option\n\n```\nclient/gone.h\n```\n")
        self.assert_finds(*(f"docs/page.md: names {path}, which is no tracked file or folder" for path in
                            ("server/gone.cc", "server/*/gone.def", "server/gone_too.sh", "client/gone.h")))

    def test_finds_names_of_files_that_left_a_folder(self):
        self.write("server/README.md", "- `pool.cc`, `run.h`: a file of another folder.\n- `gone/`: a folder.\n\nSee `gone.h`.\n")
        self.assert_finds("server/README.md: lists run.h, which is not in server/", "server/README.md: lists gone/, which is not in server/",
                          "server/README.md: names gone.h, which is nowhere in the tree")

    def test_the_changelog_may_name_earlier_paths_but_has_no_dead_links(self):
        self.write("CHANGELOG.md", "`server/gone.cc` [a](gone.md)\n")
        self.assert_finds("CHANGELOG.md: links to gone.md, which")


if __name__ == "__main__":
    unittest.main()
