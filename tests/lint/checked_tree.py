"""Runs the checks of scripts/checks on small trees in temporary folders, for the tests beside this file."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CHECKS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "checks"


class CheckedTree(unittest.TestCase):
    """A test case with an empty tree, into which the checks are copied. `check` names the check's script."""

    check = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-checks-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for script in CHECKS.glob("*.py"):
            self.write(f"scripts/checks/{script.name}", script.read_text())

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_check(self, *words):
        """Runs the check; returns its exit status and the lines that it printed."""
        command = [sys.executable, str(self.root / "scripts" / "checks" / self.check), *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        shutil.rmtree(self.root / "scripts" / "checks" / "__pycache__", ignore_errors=True)
        return done.returncode, done.stdout.splitlines()

    def assert_passes(self, *words):
        status, lines = self.run_check(*words)
        self.assertEqual(0, status, "\n".join(lines))

    def assert_finds(self, *findings, words=()):
        """Asserts that the check fails, and prints exactly these findings: the text of each begins one line."""
        status, lines = self.run_check(*words)
        printed = "\n".join(lines)
        self.assertEqual(1, status, printed)
        self.assertEqual(f"{self.check.removesuffix('.py')}: {len(findings)} findings", lines[-1], printed)
        for finding in findings:
            self.assertTrue(any(line.startswith(finding) for line in lines), f"'{finding}' was not printed:\n{printed}")
