#!/usr/bin/env python3
"""Tests first_hour.py: `first_hour_test.py Records` with shell scripts in place of programs, `first_hour_test.py DryRun BUILD` on softgpu."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import first_hour as first_hour_module

HERE = pathlib.Path(__file__).resolve().parent
BUILD = None
PROBE = """#!/bin/sh
# Probes of every way to end. Each run of one is a line in the file `runs`.
case $1 in
  LIST) echo good crashes hangs refuses garbles leaves; exit ;;
esac
echo $1 >>"$(dirname "$0")/runs"
case $1 in
  good | leaves) echo '{"probe": "x", "seconds": 0, "seen": {"number": 7, "nested": {"yes": true}}}' ;;
  crashes) kill -SEGV $$ ;;
  hangs) echo half; sleep 1000 ;;
  refuses) echo '{"probe": "x", "seconds": 0, "seen": {"before": 1}, "error": "cuInit: CUDA_ERROR_NO_DEVICE"}'; exit 1 ;;
  garbles) echo 'no JSON' ;;
esac
"""
PROBES = "good crashes hangs refuses garbles leaves".split()


def first_hour(out, *words):
    """Returns the exit status and the output."""
    done = subprocess.run([sys.executable, HERE / "first_hour.py", "--out", out, *map(str, words)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def steps_of(out, part):
    return {record["step"]: record for record in json.loads((out / "report.json").read_text())[part]}


class Records(unittest.TestCase):
    """When results are written, and which are kept."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bundle = pathlib.Path(folder.name, "bundle")
        self.out = pathlib.Path(folder.name, "out")
        for name in ("bin/poold", "bin/poold-worker", "lib/client/libcuda.so.1", "tests/probe"):
            path = self.bundle / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PROBE if name == "tests/probe" else "")
            path.chmod(0o755)

    def probe(self, *words):
        return first_hour(self.out, "--bundle", self.bundle, "--part", "probe", "--probe-limit", 1, *words)

    def runs(self):
        file = self.bundle / "tests" / "runs"
        return file.read_text().split() if file.exists() else []

    def test_a_probe_that_fails_is_a_line_and_ends_nothing_else(self):
        status, said = self.probe()
        self.assertEqual(status, 1, said)
        steps = steps_of(self.out, "probe")
        self.assertEqual(list(steps), PROBES)
        self.assertEqual({name: step["status"] for name, step in steps.items()},
                         {name: "ok" if name in ("good", "leaves") else "failed" for name in PROBES})
        self.assertEqual(steps["good"]["seen"]["number"], 7)
        self.assertIn("-11", steps["crashes"]["why"])
        self.assertIn("not done after 3 s", steps["hangs"]["why"])
        self.assertEqual((steps["refuses"]["why"], steps["refuses"]["seen"]), ("cuInit: CUDA_ERROR_NO_DEVICE", {"before": 1}))
        report = (self.out / "report.md").read_text()
        for name in PROBES:
            self.assertIn(f"| {name} | ", report)
        self.assertIn("- probe/refuses: cuInit: CUDA_ERROR_NO_DEVICE", report)
        self.assertIn("half", (self.out / "log.txt").read_text())

    def test_a_part_that_was_run_is_kept(self):
        self.probe()
        before = self.runs()
        self.probe()
        self.assertEqual(self.runs(), before)
        self.probe("--again")
        self.assertEqual(self.runs(), before * 2)

    def test_a_part_goes_on_where_its_time_was_over(self):
        status, said = self.probe("--budget", -1)
        self.assertEqual(status, 0, said)
        self.assertEqual({step["status"] for step in steps_of(self.out, "probe").values()}, {"not begun"})
        self.assertEqual(self.runs(), [])
        self.probe()
        self.assertEqual(self.runs(), PROBES)
        self.assertEqual(steps_of(self.out, "probe")["good"]["status"], "ok")

    def test_a_step_at_the_end_of_its_part_is_cut_off_and_run_again(self):
        records = first_hour_module.Records(self.out, "softgpu")
        machine = first_hour_module.Machine(self.bundle, "softgpu", True, records)
        machine.deadline = time.monotonic() + 1
        first_hour_module.run_step(machine, records, "copies", "slow", lambda: machine.run(["sleep", "30"], {}, 20))
        self.assertEqual(records.steps["copies", "slow"]["status"], "not begun")
        self.assertLess(records.steps["copies", "slow"]["seconds"], 15)

    def test_the_line_that_a_killed_run_left_half_is_run_again(self):
        self.probe()
        results = self.out / "results.jsonl"
        lines = results.read_text().splitlines(keepends=True)
        results.write_text("".join(lines[:-1]) + lines[-1][:20])
        self.probe()
        self.probe()
        self.assertEqual(self.runs(), PROBES + PROBES[-1:])
        self.assertEqual(set(steps_of(self.out, "probe")), set(PROBES))

    def test_another_device_needs_another_folder(self):
        self.probe()
        status, said = self.probe("--device", "softgpu")
        self.assertEqual(status, 2, said)
        self.assertIn("has results of --device nvidia", said)

    def test_what_a_part_needs_and_has_not_is_a_line(self):
        status, said = first_hour(self.out, "--bundle", self.bundle, "--part", "parity,copies,memory")
        self.assertEqual(status, 1, said)
        self.assertEqual(steps_of(self.out, "parity")["the other steps"]["status"], "skipped")
        self.assertEqual(steps_of(self.out, "copies")["the other steps"]["status"], "failed")  # poold does not start

    def test_what_differs_is_found_in_the_output_of_a_test(self):
        said = """/tests/parity_test.cc:85: FAILED:
          CHECK( "directly: " + want == "through poold: " + have )
        with expansion:
          "directly: total = 2"
          ==
          "through poold: total = 1"
        with messages:
          directly: tests/e2e/apps/memory.cc:170: cuMemAlloc gave CUDA_ERROR_INVALID_VALUE, not CUDA_SUCCESS
        """
        self.assertEqual(first_hour_module.basics.differences_in(said), ['"directly: total = 2"', '"through poold: total = 1"', said.splitlines()[7].strip()])

    def test_an_unknown_part_is_refused(self):
        self.assertEqual(first_hour(self.out, "--part", "probes")[0], 2)


class DryRun(unittest.TestCase):
    """All parts on softgpu, with small sizes."""

    NEVER_SKIPPED = {"starts": ["machine", "bare", "no_sandbox_tcp", "sandboxed_shm"],
                     "parity": ["device_memory_tcp", "events_tcp", "graphs_tcp", "e2e_copies_tcp", "e2e_two_devices_tcp"],
                     "copies": ["pinned_16MiB_bare", "pageable_16MiB_tcp", "pinned_1MiB_shm", "launches_behind_16MiB_tcp",
                                "launches_behind_a_host_function_shm"],
                     "workloads": ["driver", "round_trips_driver", "accounting_off_driver"],
                     "memory": ["fill_bare", "fill_tcp", "fill_beside_another", "worker"],
                     "sharing": ["two", "kill_worker"]}

    def test_every_step_has_a_result_and_the_report_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out")
            status, said = first_hour(out, "--bundle", BUILD, "--device", "softgpu", "--quick")
            self.assertEqual(status, 0, said)
            probes = subprocess.run([BUILD / "tests" / "probe", "LIST"], capture_output=True, text=True, check=True,
                                    env={**os.environ, "LD_LIBRARY_PATH": str(BUILD / "lib" / "softgpu")}).stdout.split()
            steps = steps_of(out, "probe")
            self.assertEqual(set(steps), set(probes))
            for name in probes:
                # softgpu's queues may be unbounded; it can run all other probes.
                self.assertIn(steps[name]["status"], ("ok", "skipped") if name.startswith("full_") else ("ok",), steps[name])
                self.assertTrue(steps[name]["seen"] or steps[name]["why"], name)
            for part, names in self.NEVER_SKIPPED.items():
                for name in names:
                    step = steps_of(out, part).get(name, {})
                    self.assertEqual(step.get("status"), "ok", f"{part}/{name}: {step}")
            for step in (step for part in self.NEVER_SKIPPED for step in steps_of(out, part).values() if step["status"] == "skipped"):
                print(f"SKIPPED: first_hour.{step['part']}.{step['step']}: {step['why']}")
            report = (out / "report.md").read_text()
            for part in ("probe", *self.NEVER_SKIPPED):
                self.assertIn(f"\n## {part}\n", report)
            self.assertEqual(list(pathlib.Path("/dev/shm").glob("*hour-*")), [], "softgpu's files are left")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        BUILD = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main(verbosity=2)
