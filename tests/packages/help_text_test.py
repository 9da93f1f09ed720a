#!/usr/bin/env python3
"""Tests scripts/packages/help_text.py, which reads what programs print with --help."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/packages"))
from help_text import Help  # noqa: E402

BY_HAND = """Usage: pool-x [--server URL] [--] PROGRAM
       pool-x --check ADDRESS

Runs PROGRAM. It does so at
once.

  --server URL  the server; default:
                $GPUPOOL
  --gpus N, --memory SIZE, --one-host,
  --label LABEL
                resources to request: as
                many
  --version     print the version

The exit status is PROGRAM's.
"""
BY_LIBRARY = """x: shows things.
Usage: x [OPTIONS] TENANT SUBCOMMAND

Positionals:
  TENANT TEXT REQUIRED        the tenant

Options:
  -h,--help                   Print this help message and exit
  --poold TEXT (Env:GPUPOOL_ADMIN)
                              admin socket [the only one]
  --list Excludes: --remove   List

Subcommands:
  gpus                        show GPUs
  top                         update
                              in place

Quota keys:
  memory=8GiB  limit
Exit status: 0
"""


class HelpTest(unittest.TestCase):
    def test_reads_text_written_by_hand(self):
        text = Help(BY_HAND)
        self.assertEqual(text.usage, ["pool-x [--server URL] [--] PROGRAM", "pool-x --check ADDRESS"])
        self.assertEqual(text.about, [(True, ["Runs PROGRAM. It does so at", "once."])])
        self.assertEqual(text.options[0], ("--server URL", "the server; default: $GPUPOOL"))
        self.assertEqual(text.options[1], ("--gpus N, --memory SIZE, --one-host, --label LABEL", "resources to request: as many"))
        self.assertEqual(text.notes, [(True, ["The exit status is PROGRAM's."])])

    def test_reads_text_of_the_command_line_library(self):
        text = Help(BY_LIBRARY)
        self.assertEqual(text.options[0], ("TENANT TEXT REQUIRED", "the tenant"))
        self.assertEqual(text.options[2], ("--poold TEXT (Env:GPUPOOL_ADMIN)", "admin socket [the only one]"))
        self.assertEqual(text.commands, [("gpus", "show GPUs"), ("top", "update in place")])
        self.assertEqual(text.notes, [(True, ["Quota keys:"]), (False, ["  memory=8GiB  limit"]), (True, ["Exit status: 0"])])

    def test_reads_headings_in_capitals(self):
        self.assertEqual(Help(BY_LIBRARY.replace("Options:", "OPTIONS:").replace("Subcommands:", "SUBCOMMANDS:")).commands,
                         Help(BY_LIBRARY).commands)

    def test_knows_which_options_take_values(self):
        self.assertEqual(Help(BY_HAND).words(),
                         [("--server", True, "the server"), ("--gpus", True, "resources to request"), ("--memory", True, "resources to request"),
                          ("--one-host", False, "resources to request"), ("--label", True, "resources to request"),
                          ("--version", False, "print the version")])
        self.assertEqual([(word, value) for word, value, _ in Help(BY_LIBRARY).words()],
                         [("-h", False), ("--help", False), ("--poold", True), ("--list", False)])

    def test_takes_the_first_sentence_as_the_summary(self):
        self.assertEqual(Help(BY_HAND).summary("pool-x"), "Runs PROGRAM")
        self.assertEqual(Help(BY_LIBRARY).summary("x"), "shows things")


if __name__ == "__main__":
    unittest.main()
