#!/usr/bin/env python3
"""PyTorch, JAX and CuPy through poold and on the bare driver of this machine: the same results, and the ratio of times.

    tests/gpu/run.py --bundle gpupool-0.1.0-x86_64.tar.gz
    tests/gpu/run.py --bundle build/release --parity      # tests/parity: driver calls, bare and through poold, line by line

Needs a bundle of scripts/make-bundle.sh (or a build folder), python3 with the frameworks, and a GPU, but not gpupool's sources.
Each workload (workloads.py) runs in separate processes, alternately bare and through poold. Writes results.md and results.json.
Exits with 1 if a workload fails only through poold, gives other results there, or did not use poold; with 2 and the reason if
it cannot start.
"""
import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import pool as pools  # noqa: E402
import workloads  # noqa: E402  (the workloads import the frameworks)

TOLERANCE = 1e-3  # relative, if results are not bitwise equal: the order of atomic additions varies
WAYS = ("bare", "shm", "tcp")
FRAMEWORKS = {"torch": ("PyTorch", "torch"), "jax": ("JAX", "jax[cuda12]"), "cupy": ("CuPy", "cupy-cuda12x[ctk]")}  # (name, pip's name)
SOFTGPU = {  # lets CuPy run on softgpu, too (docs/python.md)
    "SOFTGPU_COMPUTE_CAPABILITY": "12.0", "CUPY_COMPILE_WITH_PTX": "1", "CUPY_ACCELERATORS": ""}


class NotReady(Exception):
    """Something is missing on this machine; the message says what to do."""


def unpacked(bundle, folder):
    """Returns the folder with bin/ and lib/, and unpacks an archive for it."""
    if not bundle.exists():
        raise NotReady(f"{bundle} does not exist: make it with scripts/make-bundle.sh, or name a build folder")
    if bundle.is_dir():
        tree = bundle
    else:
        try:
            with tarfile.open(bundle) as archive:
                archive.extractall(folder)
        except tarfile.TarError as damaged:
            raise NotReady(f"{bundle} cannot be unpacked: {damaged}") from damaged
        tree = next((path.parent for path in pathlib.Path(folder).glob("*/bin")), pathlib.Path(folder))
    missing = [name for name in ("bin/poold", "bin/poold-worker", "lib/client/libcuda.so.1") if not (tree / name).exists()]
    if missing:
        raise NotReady(f"{bundle} has no {', '.join(missing)}: is it gpupool's bundle or build folder, and built?")
    return tree


def check_driver():
    if "GPUPOOL" in os.environ:
        raise NotReady("GPUPOOL is set: this would compare the pool with itself; run it without pool-run")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as missing:
        raise NotReady(f"NVIDIA's driver library is not to be found ({missing}): is there a GPU, and its driver installed? "
                       "--device softgpu tries this script without one") from missing
    result, count = driver.cuInit(0), ctypes.c_int()
    if result or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise NotReady(f"NVIDIA's driver finds no GPU (cuInit: error {result}): does nvidia-smi show one?")


def say_what_there_is(names):
    for name, (title, package) in FRAMEWORKS.items():
        if any(workload.startswith(name) for workload in names):
            absent = f"not installed, its workloads are skipped: {sys.executable} -m pip install '{package}'"
            print(f"{title}: {absent if importlib.util.find_spec(name) is None else 'found'}", flush=True)


def run(name, quick, environment, seconds):
    """Runs a workload in a process. Returns its last line, which is JSON, or {"failed": why} or {"skipped": why}."""
    command = [sys.executable, str(HERE / "workloads.py"), name] + (["--quick"] if quick else [])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {seconds} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}")[-2000:]}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": f"no result in what it printed: {done.stdout[-500:]!r}"}


def run_pooled(pool, name, quick, environment, seconds):
    """Like run(), but fails if poold saw no session: with another libcuda.so.1 the results would be the bare driver's."""
    before = pool.said().count("session_started")
    result = run(name, quick, environment, seconds)
    if "seconds" in result and pool.said().count("session_started") == before:
        return {"failed": "it never came to poold: another libcuda.so.1 was found before gpupool's"}
    return result


def compared(one, other):
    """Compares two results, each a list of numbers and a digest. Returns whether they are equal, and a description."""
    if one["digest"] == other["digest"] and one["values"] == other["values"]:
        return True, "same bits"
    if len(one["values"]) != len(other["values"]):
        return False, "different numbers of results"
    worst = max((abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(one["values"], other["values"])), default=0.0)
    return worst <= TOLERANCE, f"within {worst:.1e}" if worst <= TOLERANCE else f"DIFFERENT: {worst:.1e}"


def summarised(tries):
    """Summarizes several runs of a workload: takes the lowest median, since noise only adds time."""
    for result in tries:
        if "failed" in result or "skipped" in result:
            return result
    return {**tries[0], "seconds": min(statistics.median(result["seconds"]) for result in tries)}


def row_of(name, results):
    bare = results["bare"]
    row = {"workload": name, "what": workloads.WORKLOADS[name].__doc__.strip(), "results": results, "good": True}
    if "skipped" in bare:
        row["verdict"] = "skipped: " + bare["skipped"]
        return row
    if "failed" in bare:
        row["verdict"] = "fails on the bare driver: " + bare["failed"].splitlines()[-1]
        return row
    words = []
    for way in WAYS[1:]:
        if way not in results:
            continue
        if "seconds" not in results[way]:
            row["good"] = False
            words.append(f"{way}: FAILS: {results[way].get('failed', results[way].get('skipped', '')).splitlines()[-1]}")
            continue
        good, said = compared(bare, results[way])
        row["good"] = row["good"] and good
        results[way]["ratio"] = results[way]["seconds"] / bare["seconds"]
        words.append(f"{way}: {said}")
    row["verdict"] = "; ".join(words)
    return row


def table(rows, about):
    lines = [f"{about}", "", "| workload | bare driver, ms | shared memory | TCP on this host | results |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        cells = []
        for way in WAYS:
            result = row["results"].get(way, {})
            cells.append("" if "seconds" not in result else f"{1000 * result['seconds']:.2f}" if way == "bare" else f"{result['ratio']:.3f}")
        lines.append(f"| {row['workload']}: {row['what']} | {' | '.join(cells)} | {row['verdict'].replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def environments_of(pool, tree):
    """Returns the environment for each way to run. The bare driver gets none of the caller's GPUPOOL variables."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL")}
    if pool.device == "softgpu":
        bare.update(SOFTGPU, SOFTGPU_INSTANCE=pool.settings["SOFTGPU_INSTANCE"] + "-bare",
                    LD_LIBRARY_PATH=":".join([str(tree / "lib" / "softgpu"), os.environ.get("LD_LIBRARY_PATH", "")]))
    more = SOFTGPU if pool.device == "softgpu" else {}
    return {"bare": bare, "shm": pool.environment(GPUPOOL_TRANSPORT="auto", **more), "tcp": pool.environment(GPUPOOL_TRANSPORT="tcp", **more)}


def compare_calls(given, ways):
    """Runs tests/parity on this device. Returns the number of ways that failed."""
    program = given.bundle / "tests" / "parity_test"
    if not program.exists() or not (given.bundle / "tests" / "driver_parity").exists():
        raise NotReady(f"{given.bundle} has no tests/parity_test and tests/driver_parity: --parity needs a build folder with tests")
    if given.device == "nvidia":
        check_driver()
    given.output.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL")}
    failed = 0
    for way in ways:
        settings = {**environment, "GPUPOOL_TEST_DEVICE": given.device, "GPUPOOL_TEST_TRANSPORT": way}
        report = given.output / f"parity-{way}.txt"
        with report.open("w") as output:
            try:
                status = subprocess.run([program, "driver calls*"], env=settings, stdout=output, stderr=subprocess.STDOUT,
                                        timeout=given.seconds).returncode
            except subprocess.TimeoutExpired:
                status = f"not done after {given.seconds} s"
        failed += status != 0
        print(f"parity, {way}: {'the same' if status == 0 else f'DIFFERENT ({status}), see {report}'}", flush=True)
    return failed


def measure(given, names, ways):
    rows = []
    if given.device == "nvidia":
        check_driver()
    say_what_there_is(names)
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpupool-") as scratch:
        tree = unpacked(given.bundle, scratch)
        try:
            pool = pools.Pool(tree / "bin", tree / "lib" / "client", given.device, SOFTGPU if given.device == "softgpu" else None).__enter__()
        except (RuntimeError, OSError) as failure:
            raise NotReady(f"poold cannot be started: {failure}") from failure
        try:
            environments = environments_of(pool, tree)
            for name in names:
                tries = {way: [] for way in ways}
                for _ in range(given.repeat):
                    for way in ways:
                        if tries[way] and "seconds" not in tries[way][-1]:
                            continue
                        words = name, given.quick, environments[way], given.seconds
                        tries[way].append(run(*words) if way == "bare" else run_pooled(pool, *words))
                rows.append(row_of(name, {way: summarised(tries[way]) for way in ways}))
                print(f"{name}: {rows[-1]['verdict']}", flush=True)
                # Written after each workload, so that an interrupted run leaves its results.
                about = f"{platform.node()}, {next((r['results']['bare'].get('device') for r in rows if r['results']['bare'].get('device')), 'no device')}, ratio of times: through poold to bare"
                (given.output / "results.json").write_text(json.dumps(rows, indent=1))
                (given.output / "results.md").write_text(table(rows, about))
        finally:
            pool.__exit__()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=pathlib.Path, required=True, help="what make-bundle.sh made, or a folder with bin/ and lib/")
    parser.add_argument("--device", default="nvidia", help="poold's: nvidia, a path, or softgpu (to try the script)")
    parser.add_argument("--only", default="", help="workloads whose name begins with one of these, with commas")
    parser.add_argument("--ways", default="shm,tcp")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each workload in each way")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--seconds", type=int, default=600, help="for one run")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--parity", action="store_true", help="only tests/parity, of a build folder with tests")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    names = [name for name in workloads.WORKLOADS if any(name.startswith(start) for start in given.only.split(","))]
    if given.list:
        print("\n".join(f"{name}: {workloads.WORKLOADS[name].__doc__.strip()}" for name in names))
        return 0
    if not names:
        parser.error(f"no workload begins with {given.only}; --list names them")
    ways = [way for way in WAYS if way == "bare" or way in given.ways.split(",")]
    try:
        if given.parity:
            return 1 if compare_calls(given, ways[1:]) else 0
        rows = measure(given, names, ways)
    except NotReady as reason:
        print(f"Not ready: {reason}", file=sys.stderr)
        return 2
    print((given.output / "results.md").read_text())
    compared_ones = [row for row in rows if "same" in row["verdict"] or "within" in row["verdict"]]
    bad = [row["workload"] for row in rows if not row["good"]]
    print(f"{len(compared_ones)} compared, {len(bad)} failed" + "".join(f", {name}" for name in bad))
    return 1 if bad or not compared_ones else 0


if __name__ == "__main__":
    sys.exit(main())
