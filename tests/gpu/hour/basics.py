"""Parts 1 to 4: the driver without gpupool, starting poold, the same calls on the driver and through poold, and sessions that move."""
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile
import time

from .machine import public_copy
from .records import Failure, Skip

PROBE_SECONDS = 18  # the probe's own limit; it is killed 2 s later


# --- 1. Probes of the driver, without gpupool ---

def run_probe(machine, name, seconds):
    try:
        output = machine.run([machine.probe, name, "--limit", seconds], machine.bare(), seconds + 2)
    except Failure as failure:
        lines = failure.seen.get("output", "").strip().splitlines()
        try:
            line = json.loads(lines[-1])
        except (ValueError, IndexError):
            raise Failure(str(failure)) from None
        raise Failure(line["error"], line["seen"]) from None
    line = json.loads(output.strip().splitlines()[-1])
    if "skipped" in line:
        raise Skip(line["skipped"])
    return line["seen"]


def probe(machine, seconds=PROBE_SECONDS):
    names = machine.run([machine.program(machine.probe), "LIST"], machine.bare(), 20).split()
    for name in names:
        yield name, functools.partial(run_probe, machine, name, seconds)


# --- 2. Does it start? ---

def describe_machine():
    def first_line(path):
        return pathlib.Path(path).read_text().splitlines()[0] if os.access(path, os.R_OK) else "not readable"

    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "none"

    nodes = sorted(str(path) for pattern in ("nvidia*", "nvidia-caps/*") for path in pathlib.Path("/dev").glob(pattern) if not path.is_dir())
    try:
        smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as missing:
        smi = str(missing)
    return {"kernel": platform.release(), "glibc": platform.libc_ver()[1], "cpus": os.cpu_count(), "uid": os.getuid(),
            "memory_GiB": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
            "nodes": {node: f"{os.stat(node).st_mode & 0o777:o}" for node in nodes}, "nvidia_smi": smi,
            "driver": first_line("/proc/driver/nvidia/version"), "security_modules": first_line("/sys/kernel/security/lsm"),
            "packages": {name: version(name) for name in ("torch", "jax", "cupy-cuda12x", "cupy-cuda13x", "triton")}}


def start_once(machine, way, options, user=None):
    """Starts poold with these options and runs vector_add twice."""
    if user and os.getuid() != 0:
        raise Skip("needs root, to start poold as another user")
    example = machine.program("examples/vector_add")
    with tempfile.TemporaryDirectory(prefix="gpupool-") as folder:
        begin = time.monotonic()
        try:
            pool = machine.pool(*options, user=user, tree=public_copy(machine.tree, folder) if user else None)
            with pool:
                seen = {"poold_s": time.monotonic() - begin}
                try:
                    for run in ("first_s", "second_s"):
                        begin = time.monotonic()
                        machine.run([example], machine.pooled(pool, way), 60)
                        seen[run] = time.monotonic() - begin
                except Failure as failure:
                    machine.records.log("poold", pool.said())
                    raise Failure(str(failure), {**seen, "poold_said": pool.said()[-600:]}) from None
        except RuntimeError as failure:
            raise Failure(str(failure)) from None
    return seen


def times_of_starts(machine, environment, times):
    """Measures whole processes, one after another: with a pause before each, in which poold starts an idle worker, and without."""
    example, seen = machine.program("examples/vector_add"), {}
    for name, pause in (("after_a_pause_ms", 1), ("back_to_back_ms", 0)):
        seen[name] = []
        for _ in range(times):
            time.sleep(pause)
            begin = time.monotonic()
            machine.run([example], environment, 60)
            seen[name].append(round(1000 * (time.monotonic() - begin)))
    return seen


def times_through_poold(machine, way, options, times):
    with machine.pool(*options) as pool:
        return times_of_starts(machine, machine.pooled(pool, way), times)


def starts(machine):
    yield "machine", describe_machine
    yield "bare", lambda: machine.run([machine.program("examples/vector_add")], machine.bare(), 60) and {}
    for way in ("tcp", "shm"):
        for name, options, user in (("no_sandbox", ["--no-sandbox"], None), ("sandboxed", [], None), ("unprivileged", [], "nobody")):
            yield f"{name}_{way}", functools.partial(start_once, machine, way, options, user)
    times = 1 if machine.quick else 5
    yield "times_bare", lambda: times_of_starts(machine, machine.bare(), times)
    for name, options in (("times", []), ("times_idle_contexts", ["--idle-contexts", "yes"])):
        for way in ("tcp", "shm"):
            yield f"{name}_{way}", functools.partial(times_through_poold, machine, way, options, times)


# --- 3. The same calls on the driver and through poold ---

def differences_in(output):
    """Returns the relevant lines of a Catch2 program's output: pairs of lines that differ, and failed checks of driver_app."""
    lines = [line.strip() for line in output.splitlines()]
    return [line for line in lines if line.startswith(('"directly: ', '"through poold: ')) or re.search(r"\.cc:\d+: (?!FAILED)", line)]


def compare_calls(machine, way, cases, seconds=120, program="parity_test", **settings):
    environment = {**os.environ, "GPUPOOL_TEST_DEVICE": machine.device, "GPUPOOL_TEST_TRANSPORT": way, **settings}
    environment.pop("GPUPOOL", None)
    try:
        output = machine.run([machine.program(f"tests/{program}"), cases], environment, seconds)
    except Failure as failure:
        differences = differences_in(failure.seen.get("output", ""))
        raise Failure(" ".join(differences[:2]) or str(failure), {"differences": differences[2:8]}) from None
    skipped = [line for line in output.splitlines() if line.lower().startswith("skipped: ")]
    if skipped:
        raise Skip(skipped[0][len("skipped: "):])
    return {}


def test_names(machine, program):
    """Returns the test names of a Catch2 program (version 2 or 3; the exit status of version 2 is the number of tests)."""
    for words in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        listed = subprocess.run([machine.program(program), *words], capture_output=True, text=True, timeout=20)
        if listed.stdout.strip() and "Unrecognised" not in listed.stdout + listed.stderr:
            return [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    return []


def parity(machine):
    parts = machine.run([machine.program("tests/driver_parity"), "--parts"], machine.bare(), 20).split()
    cases = test_names(machine, "tests/e2e_scenarios_test")
    if machine.quick:
        parts = [part for part in parts if part in ("device_memory", "events", "graphs")]
        cases = [case for case in cases if case in ("copies", "exhaustion", "events_order_streams", "two_devices")]
    for way in ["tcp"] if machine.quick else ["tcp", "shm"]:
        for part in parts:
            yield f"{part}_{way}", functools.partial(compare_calls, machine, way, "driver calls*", GPUPOOL_TEST_PARTS=part)
        for name, cases_of, variable in (("runtime", "runtime calls*", "RUNTIME_PARITY"), ("textures", "textures*", "TEXTURES_PARITY")):
            path = machine.tree / "tests" / "parity" / ("runtime_parity-static" if name == "runtime" else "textures_parity")
            if machine.quick:
                continue
            yield f"{name}_{way}", functools.partial(compare_calls, machine, way, cases_of, **{variable: str(path)})
        for case in cases:
            yield f"e2e_{case}_{way}", functools.partial(compare_calls, machine, way, case, program="e2e_scenarios_test")


# --- 4. Sessions that are resumed, moved and suspended ---

SESSION_PROGRAMS = ("migration", "suspension", "interprocess", "resume")  # not checkpoint, whose test knows the size of its GPU


def sessions(machine):
    for name in SESSION_PROGRAMS[:1] if machine.quick else SESSION_PROGRAMS:
        program = f"e2e_{name}_test"
        cases = test_names(machine, f"tests/{program}")
        for case in cases[:1] if machine.quick else cases:
            yield f"{name}: {case}", functools.partial(compare_calls, machine, "tcp", case.replace(",", "\\,"), program=program)
