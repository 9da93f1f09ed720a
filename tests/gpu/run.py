#!/usr/bin/env python3
"""PyTorch, JAX and CuPy through poold and on the bare driver of this machine: the same results, and the ratio of times.

    tests/gpu/run.py --bundle gpupool-0.1.0-x86_64.tar.gz

needs what scripts/make-bundle.sh made (or a build folder), python3 with the frameworks, and a GPU; nothing of gpupool's build.
Each workload (workloads.py) runs in processes of its own, bare and through poold in turn. Writes results.md and results.json.
Exits non-zero if a workload fails through poold but not on the bare driver, or gives other results.
"""
import argparse
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
import workloads  # noqa: E402  (its frameworks are imported by the workloads themselves)

TOLERANCE = 1e-3  # relative, where results are not the same bits: atomics add in any order
WAYS = ("bare", "shm", "tcp")


def unpacked(bundle, folder):
    """Where bin/ and lib/ are."""
    if bundle.is_dir():
        return bundle
    with tarfile.open(bundle) as archive:
        archive.extractall(folder)
    return next(path.parent for path in pathlib.Path(folder).glob("*/bin"))


def run(name, quick, environment, seconds):
    """One workload in a process: what it printed last, as JSON, or {"failed": why} or {"skipped": why}."""
    command = [sys.executable, str(HERE / "workloads.py"), name] + (["--quick"] if quick else [])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {seconds} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}")[-2000:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def compared(one, other):
    """(same enough, in words) of two lists of numbers and a digest each."""
    if one["digest"] == other["digest"] and one["values"] == other["values"]:
        return True, "same bits"
    if len(one["values"]) != len(other["values"]):
        return False, "different numbers of results"
    worst = max((abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(one["values"], other["values"])), default=0.0)
    return worst <= TOLERANCE, f"within {worst:.1e}" if worst <= TOLERANCE else f"DIFFERENT: {worst:.1e}"


def summarised(tries):
    """The runs of a workload in one way: the fastest of their medians, as noise only ever adds."""
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
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    names = [name for name in workloads.WORKLOADS if any(name.startswith(start) for start in given.only.split(","))]
    if given.list:
        print("\n".join(f"{name}: {workloads.WORKLOADS[name].__doc__.strip()}" for name in names))
        return 0
    ways = [way for way in WAYS if way == "bare" or way in given.ways.split(",")]
    given.output.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpupool-") as scratch:
        tree = unpacked(given.bundle, scratch)
        with pools.Pool(tree / "bin", tree / "lib" / "client", given.device) as pool:
            environments = {
                "bare": dict(os.environ), "shm": pool.environment(GPUPOOL_TRANSPORT="auto"), "tcp": pool.environment(GPUPOOL_TRANSPORT="tcp")}
            if given.device == "softgpu":
                environments["bare"].update(LD_LIBRARY_PATH=":".join([str(tree / "lib" / "softgpu"), os.environ.get("LD_LIBRARY_PATH", "")]), SOFTGPU_INSTANCE=pool.settings["SOFTGPU_INSTANCE"] + "-bare")
            for name in names:
                tries = {way: [] for way in ways}
                for _ in range(given.repeat):
                    for way in ways:
                        if not tries[way] or "seconds" in tries[way][-1]:
                            tries[way].append(run(name, given.quick, environments[way], given.seconds))
                rows.append(row_of(name, {way: summarised(tries[way]) for way in ways}))
                print(f"{name}: {rows[-1]['verdict']}", flush=True)
                # After each, so that a run which is cut off leaves what it had.
                about = f"{platform.node()}, {next((r['results']['bare'].get('device') for r in rows if r['results']['bare'].get('device')), 'no device')}, ratio of times: through poold to bare"
                (given.output / "results.json").write_text(json.dumps(rows, indent=1))
                (given.output / "results.md").write_text(table(rows, about))
    print((given.output / "results.md").read_text())
    compared_ones = [row for row in rows if "same" in row["verdict"] or "within" in row["verdict"]]
    bad = [row["workload"] for row in rows if not row["good"]]
    print(f"{len(compared_ones)} compared, {len(bad)} failed" + "".join(f", {name}" for name in bad))
    return 1 if bad or not compared_ones else 0


if __name__ == "__main__":
    sys.exit(main())
