"""This machine and gpupool's programs on it. Steps run programs with a time limit, after which all of their processes are killed."""
import glob
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

import pool as pools
import run
from .records import Failure, Skip

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs.py"
SOFTGPU_MEMORY = "256MiB"


class Machine:
    def __init__(self, tree, device, quick, records, probe=None, options=()):
        self.tree = tree
        self.device = device
        self.quick = quick
        self.records = records
        self.probe = probe or tree / "tests" / "probe"
        self.instance = f"hour-{os.getpid()}"
        self.options = list(options)  # options of every poold
        self.facts = {}
        self.deadline = float("inf")  # end of the part (monotonic clock): limits all programs

    @property
    def on_softgpu(self):
        return self.device == "softgpu"

    def close(self):
        for left in glob.glob(f"/dev/shm/*{self.instance}*") if self.on_softgpu else ():
            pathlib.Path(left).unlink(missing_ok=True)

    def limit(self, seconds):
        return min(seconds, max(1.0, self.deadline - time.monotonic()))

    def program(self, path):
        """Returns the path of a program in the bundle or build folder; raises Skip if it is missing."""
        program = self.tree / path
        if not program.exists():
            raise Skip(f"{path} is not here: make the bundle with --tests, or build the tests with nvcc")
        return program

    def settings(self):
        """Returns softgpu's settings for poold."""
        return {**run.SOFTGPU, "SOFTGPU_INSTANCE": self.instance, "SOFTGPU_MEMORY": SOFTGPU_MEMORY} if self.on_softgpu else {}

    def bare(self, beside_pool=False, **more):
        """Returns the environment of a program that runs directly on the device. `beside_pool`: on softgpu, it uses poold's device."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL")}
        folder = self.tree / "lib" / "softgpu" if self.on_softgpu else pathlib.Path(self.device).parent if self.device != "nvidia" else None
        if folder:
            environment["LD_LIBRARY_PATH"] = ":".join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        environment.update(self.settings())
        if self.on_softgpu and not beside_pool:
            environment["SOFTGPU_INSTANCE"] += "-bare"
        return {**environment, **more}

    def pooled(self, pool, way="auto", **more):
        """Returns the environment of a program that uses `pool`. `way`: shm allows shared memory, tcp forces tcp."""
        return pool.environment(GPUPOOL_TRANSPORT="auto" if way == "shm" else way, **self.settings(), **more)

    def pool(self, *options, tree=None, **more):
        """Returns a context manager that runs poold. `more`: its environment; `user`: the user that it runs as."""
        tree = tree or self.tree
        user = more.pop("user", None)
        return pools.Pool(tree / "bin", tree / "lib" / "client", self.device, {**self.settings(), **more}, [*self.options, *options], user)

    def run(self, command, environment, seconds):
        """Returns the program's standard output. Raises Failure if it fails or exceeds the limit; then also kills its child processes."""
        command, seconds = [str(word) for word in command], self.limit(seconds)
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True, text=True, errors="replace")
        try:
            output, errors = process.communicate(timeout=seconds)
            why = "" if process.returncode == 0 else f"status {process.returncode}"
        except subprocess.TimeoutExpired:
            why = f"not done after {seconds:.0f} s"
            output, errors = kill_group(process)
        if not why:
            return output
        self.records.log(" ".join(command), output + errors)
        last = [line for line in (errors.strip() or output.strip()).splitlines() if line.strip()]
        raise Failure(f"{pathlib.Path(command[0]).name}: {why}" + (f": {last[-1][-300:]}" if last else ""), {"output": output})

    def run_json(self, command, environment, seconds):
        """Like run(), for programs whose last line is JSON; {"skipped": why} raises Skip."""
        output = self.run(command, environment, seconds)
        try:
            seen = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise Failure(f"no result in what it printed: {output[-300:]!r}") from None
        if "skipped" in seen:
            raise Skip(seen["skipped"])
        return seen

    def figures(self, command, environment, seconds):
        """Like run(), for programs that print a name and a number in each line."""
        return {name: float(value) for name, value in map(str.split, self.run(command, environment, seconds).strip().splitlines())}

    def device_facts(self):
        """Returns the results of the probe `device`, such as the free memory (0 if the probe fails)."""
        if not self.facts:
            try:
                self.facts = self.run_json([self.probe, "device"], self.bare(), 20)["seen"]
            except Failure:
                self.facts = {"free_MiB": 0}
        return self.facts

    def free_bytes(self):
        return int(self.device_facts()["free_MiB"]) << 20


def kill_group(process):
    """Kills the process and its children and returns their output. Does not wait for a process that hangs in the kernel driver."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired as held:
        process.stdout.close()
        process.stderr.close()
        return tuple((part or b"").decode(errors="replace") for part in (held.stdout, held.stderr))


class Companion:
    """A program that runs during a step and answers each line with a line."""

    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, bufsize=0, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel driver
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def line(self, seconds):
        stop, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = stop - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failure(f"no answer after {seconds} s")
            piece = self.process.stdout.read(1)
            if not piece:
                self.errors.seek(0)
                said = self.errors.read().decode(errors="replace").strip().splitlines()
                raise Failure("it has ended" + (f": {said[-1][-300:]}" if said else ""))
            text += piece
        return text.decode().strip()

    def ask(self, words="", seconds=20):
        try:
            self.process.stdin.write(words.encode() + b"\n")
        except BrokenPipeError:
            pass  # line() reports the reason
        return self.line(seconds)


def public_copy(tree, folder):
    """Copies bin/ and lib/ to a folder that all users can read."""
    os.chmod(folder, 0o755)
    for name in ("bin", "lib"):
        shutil.copytree(tree / name, pathlib.Path(folder) / name)
    return pathlib.Path(folder)
