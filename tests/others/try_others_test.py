"""try_others_test.py BUILD: tests try_others.py on an artificial suite, whose programs need no CUDA and fail in known ways."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("try_others.py")
PROGRAMS = {
    "passes": "threading.Event().wait(3 if 'GPUPOOL' in os.environ else 0.2)",
    "fails": "self.fail()",
    "fails_in_pool": "self.assertNotIn('GPUPOOL', os.environ)",
    "never_ends": "threading.Event().wait()",
    "skips_all": "self.skipTest('never')",
    # The first run of each way and all runs through the pool take longer, so that the ratio is printed.
    "slow_at_first": "f = open('slow_at_first', 'a'); first = f.tell() < 2; f.write('x'); f.close(); pool = 'GPUPOOL' in os.environ; "
                     "threading.Event().wait(4 if first else 2 if pool else 0.2)",
    # Reaches the limit of 15 s in its second test.
    "takes_long": "pass\n  def test_b(self):\n    threading.Event().wait(20)\n  def test_c(self):\n    self.fail()",
    "skips_module": "print('1 skipped in 0.1s', flush=True); os._exit(5)",  # as pytest does
    "runs_none": "print('  0/0 tests passed')",
}


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        tests = self.folder / "tinygrad" / "test" / "backend"
        tests.mkdir(parents=True)
        for package in (tests, tests.parent):  # Python's own package "test" would be found first
            (package / "__init__.py").touch()
        for name, body in PROGRAMS.items():
            (tests / f"test_{name}.py").write_text(
                f"import os, threading, unittest\nclass T(unittest.TestCase):\n  def test(self):\n    {body}\n")

    def run_script(self, *words, path=os.environ["PATH"]):
        """Runs the script with SIGINT ignored, as a shell starts a job in the background."""
        return subprocess.run([sys.executable, SCRIPT, self.folder, "--build", BUILD, *words], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PATH": path}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))

    def add_sample(self):
        """Adds a sample whose problem size is reduced (SMALLER in suites.py); its program passes if its folder has the reduced one."""
        sample = self.folder / "cuda-samples" / "Samples" / "2_Concepts" / "scan"
        sample.mkdir(parents=True)
        (sample / "CMakeLists.txt").write_text("add_executable(scan main.cpp)\n")
        (sample / "main.cpp").write_text("const int iCycles = 100;\n")
        return sample

    def test_new_failures_are_named(self):
        done = self.run_script("--seconds", "15")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        new = {tuple(line.split()[2:4]) for line in done.stdout.splitlines() if line.startswith("  new failure")}
        self.assertEqual({(name.removeprefix("test.backend.test_"), way) for name, way in new},
                         {("fails", "direct"), ("fails", "pool"), ("fails_in_pool", "pool"), ("never_ends", "direct"), ("never_ends", "pool")})

    def test_a_program_that_reaches_the_limit_is_judged_by_what_it_ran(self):
        done = self.run_script("--only", "*test_takes_long", "--seconds", "15", "--quick")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("pool: in part: 2 tests passed in 15 s", done.stdout)
        self.assertIn("tinygrad: pool in part 1\n", done.stdout)

    def test_a_program_can_print_its_summary_at_the_limit(self):
        module = self.folder / "cupy" / "tests" / "cupy_tests" / "some_tests" / "test_some.py"
        module.parent.mkdir(parents=True)
        module.touch()
        python = self.folder / "python"  # stands for one with pytest
        python.write_text(f"#!{sys.executable}\nimport threading\ntry:\n  threading.Event().wait(60)\n"
                          "except KeyboardInterrupt:\n  print('7 passed in 5.0s')\n")
        python.chmod(0o755)
        done = self.run_script("--suite", "cupy", "--python", python, "--seconds", "5", "--quick")
        self.assertIn("pool: in part: 7 tests passed in 5 s", done.stdout, done.stderr)

    def test_a_chosen_program_that_passes(self):
        done = self.run_script("--only", "*test_passes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("direct passed 1, pool passed 1", done.stdout)
        self.assertRegex(done.stdout, r"geometric mean \d+\.\d+ of the 1 programs")
        self.assertRegex(done.stdout, r"\d\.\d+ test.backend.test_passes")

    def test_times_are_medians_of_further_runs(self):
        done = self.run_script("--only", "*test_slow_at_first", "--repeat", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len((self.folder / "tinygrad" / "slow_at_first").read_text()), 2 * 4)
        directly = re.search(r"test_slow_at_first (\d+\.\d+) s directly", done.stdout)
        self.assertLess(float(directly[1]), 3, done.stdout)

    def test_quick_runs_directly_what_fails_through_the_pool(self):
        done = self.run_script("--only", "*test_[fp]a*s", "--quick")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("tinygrad: direct new 1, pool new 1, pool passed 1\n", done.stdout)

    def test_a_program_that_skips_all_of_its_tests_has_not_passed(self):
        for name in ("skips_all", "skips_module", "runs_none"):
            done = self.run_script("--only", f"*test_{name}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("direct skipped 1, pool skipped 1", done.stdout)
            self.assertNotIn("passed", done.stdout)

    def test_a_list_writes_nothing(self):
        self.add_sample()
        before = sorted(self.folder.rglob("*"))
        done = self.run_script("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cuda-samples 2_Concepts.scan\n", done.stdout)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_a_sample_runs_with_a_smaller_problem_in_a_copy(self):
        sample = self.add_sample()
        compiler = self.folder / "bin" / "nvcc"  # makes a program that looks for the reduced size in its working folder
        compiler.parent.mkdir()
        compiler.write_text("""#!/bin/sh
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\ngrep "iCycles = 1;" %s\\n' "$3" >"$2" && chmod +x "$2"
""")
        compiler.chmod(0o755)
        done = self.run_script("--suite", "cuda-samples", path=f"{compiler.parent}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("direct passed 1, pool passed 1", done.stdout)
        self.assertEqual((sample / "main.cpp").read_text(), "const int iCycles = 100;\n")

    def test_a_folder_without_checkouts(self):
        done = self.run_script("--suite", "ggml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no checkout named ggml", done.stderr)


if __name__ == "__main__":
    BUILD = sys.argv.pop(1)
    unittest.main()
