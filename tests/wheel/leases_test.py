#!/usr/bin/env python3
"""leases_test.py BUILD ENVIRONMENT: connect() with a whole pool: a scheduler and two GPU hosts with one softgpu device each.
ENVIRONMENT: a virtual environment with the wheel (environment.py)."""
import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from environment import PROGRAMS, Environment, skip_unless_installed  # noqa: E402
from pool import Pool  # noqa: E402
from scheduler import Scheduler, eventually  # noqa: E402

BUILD = pathlib.Path(sys.argv[1]).resolve()
environment = Environment(sys.argv[2])


def setUpModule():
    global scheduler
    scheduler = unittest.enterModuleContext(Scheduler(BUILD / "bin"))
    for name in ("one", "two"):
        settings = {"SOFTGPU_MEMORY": "512MiB", "SOFTGPU_INSTANCE": f"wheel-{os.getpid()}-{name}"}
        unittest.enterModuleContext(Pool(BUILD / "bin", BUILD / "lib" / "client", settings=settings, options=scheduler.node_options(name)))
    eventually(lambda: len(scheduler.ask("nodes")) == 2, "both hosts report to the scheduler")


class Program:
    """A program of the folder programs/ in the environment. Ends with `with`."""

    def __init__(self, name, *words):
        self.process = subprocess.Popen(environment.command("python", PROGRAMS / f"{name}.py", *words), env=environment.variables(),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def await_line(self, text, stream):
        """Returns the lines up to one that contains the text. Fails if the program ends before."""
        lines = []
        for line in stream:
            lines.append(line)
            if text in line:
                return "".join(lines)
        raise AssertionError(f"the program ended without '{text}': {''.join(lines)}{self.process.stderr.read()}")

    def end(self):
        output, errors = self.process.communicate("\n")
        if self.process.returncode != 0:
            raise AssertionError(output + errors)


class Leases(unittest.TestCase):
    def tearDown(self):
        scheduler.await_idle()

    def test_a_lease_belongs_to_the_process_and_its_children(self):
        with Program("leases", scheduler.url) as program:
            shown = program.await_line("connected", program.process.stdout)
            self.assertRegex(shown, r"\Arefused: .*3 GPUs.*\nrefused: memory.*\nconnected\n\Z")
            (lease,) = scheduler.ask("leases")
            self.assertEqual(lease["program"], "leases.py")
            program.end()
        scheduler.await_idle()

    def test_an_interrupt_withdraws_the_request(self):
        with Program("leases", scheduler.url) as holder:
            holder.await_line("connected", holder.process.stdout)
            with Program("interrupted", scheduler.url) as waiting:
                waiting.await_line("waiting for 2 GPUs", waiting.process.stderr)
                self.assertEqual(len(scheduler.ask("queue")), 1)
                waiting.process.send_signal(signal.SIGINT)
                waiting.await_line("interrupted", waiting.process.stdout)
                eventually(lambda: not scheduler.ask("queue"), "the request is withdrawn while its process lives")
                waiting.end()
            self.assertEqual(len(scheduler.ask("leases")), 1)
            holder.end()

    def test_the_hook_takes_a_lease_only_for_cuda(self):
        use = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); " \
              "print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n)), n.value)"
        for program, shown in (("print('idle')", "idle\n"), (use, "0 0 2\n")):
            done = environment.run("python", "-c", program, GPUPOOL_AUTO="1", GPUPOOL=f"{scheduler.url}?gpus=2")
            self.assertEqual((done.returncode, done.stdout), (0, shown), done.stderr)
            scheduler.await_idle()


if __name__ == "__main__":
    skip_unless_installed(environment.folder)
    unittest.main(argv=sys.argv[:1])
