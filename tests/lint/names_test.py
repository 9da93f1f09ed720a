"""Tests scripts/checks/names.py."""
import subprocess
import unittest

from checked_tree import CheckedTree


class Names(CheckedTree):
    check = "names.py"

    def test_accepts_portable_names(self):
        for name in (".clang-tidy", "CMakeLists.txt", "docs/README.md", "server/worker_pool.cc", "client/a2.h", "client/page.S", "data/Model-1.2.csv"):
            self.write(name)
        self.assert_passes()

    def test_rejects_characters_that_tools_do_not_take(self):
        for name in ("docs/two words.md", "docs/line\nbreak.md", "docs/\x1bescape.md", "docs/ä.md", "docs/-rf", "docs/a:b"):
            self.write(name)
        self.assert_finds(r"'docs/two words.md': has characters", r"'docs/line\nbreak.md': has", r"'docs/\x1bescape.md': has", "'docs/\\xe4.md': has",
                          "'docs/-rf': has", "'docs/a:b': has")

    def test_requires_snake_case_of_sources(self):
        for name in ("client/WorkerPool.cc", "client/worker-pool.h", "client/pool.cpp", "client/pool.hpp", "client/_pool.h", "client/two__words.cc", "client/a.H"):
            self.write(name)
        self.assert_finds(*(f"client/{name}: a source's name must be snake_case" for name in
                            ("WorkerPool.cc", "worker-pool.h", "pool.cpp", "pool.hpp", "_pool.h", "two__words.cc", "a.H")))

    def test_rejects_names_that_differ_only_in_case(self):
        for name in ("docs/Readme.md", "docs/README.md", "Tests/a.txt", "tests/b.txt"):
            self.write(name)
        self.assert_finds("'docs/Readme.md': differs from 'docs/README.md' only in case", "'tests': differs from 'Tests' only in case")

    def test_checks_only_tracked_files_of_a_git_repository(self):
        self.write("good.cc")
        self.write("Bad.cc")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        subprocess.run(["git", "add", "good.cc"], cwd=self.root, check=True)
        self.assert_passes()
        subprocess.run(["git", "add", "Bad.cc"], cwd=self.root, check=True)
        self.assert_finds("Bad.cc: a source's name")

    def test_checks_all_files_where_git_lists_none(self):
        self.write("Bad.cc")
        self.write("build/Bad.cc")
        self.write(".git", "gitdir: /nowhere\n")
        status, lines = self.run_check()
        self.assertEqual((1, "names: 1 findings"), (status, lines[-1]), "\n".join(lines))


if __name__ == "__main__":
    unittest.main()
