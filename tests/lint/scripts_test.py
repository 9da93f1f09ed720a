"""Tests scripts/checks/scripts.py."""
import os
import shutil
import unittest
from unittest import mock

from checked_tree import CheckedTree


class Scripts(CheckedTree):
    check = "scripts.py"

    def assert_prints(self, status, text, *words):
        found, lines = self.run_check(*words)
        self.assertEqual(status, found, "\n".join(lines))
        self.assertIn(text, "\n".join(lines))

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_finds_faults_of_shell_scripts_with_and_without_suffix(self):
        self.write("tools/good.sh", "#!/bin/sh\necho one\n")
        self.write("tools/page.md", "#!/bin/sh\ncd /tmp\n")
        self.assert_prints(0, "shellcheck: 1 files, no findings", "shell")
        self.write("tools/bad.sh", "#!/bin/bash\ncd /tmp\n")
        self.assert_prints(1, "In tools/bad.sh line 2", "shell")
        self.assert_prints(0, "shellcheck: 1 files, no findings", "shell", "tools/good.sh", "tools/page.md")
        self.write("tools/bad.sh", "echo one  # shellcheck shell=bash\n")
        self.write("tools/init", "#!/usr/bin/env bash\ncd /tmp\n")
        self.assert_prints(1, "In tools/init line 2", "shell")

    @unittest.skipUnless(shutil.which("pyflakes3") or shutil.which("pyflakes"), "pyflakes is not installed")
    def test_finds_faults_of_python_files_with_and_without_suffix(self):
        self.write("tools/bad.py", "import os\n")
        self.write("tools/run", "#!/usr/bin/env python3\nundefined()\n")
        self.assert_prints(1, "tools/bad.py:1:1: 'os' imported but unused", "python")
        self.assert_prints(1, "tools/run:2:1: undefined name 'undefined'", "python", "tools/run")

    def test_is_skipped_without_the_tool(self):
        with mock.patch.dict(os.environ, PATH=str(self.root)):
            self.assert_prints(77, "skipped: shellcheck is not installed", "shell")
            self.assert_prints(77, "skipped: pyflakes3 is not installed", "python")


if __name__ == "__main__":
    unittest.main()
