#!/usr/bin/env python3
"""A first hour on a GPU machine: what its driver does, and what gpupool does on it, in eight parts and one report.

    tests/gpu/first_hour.py --out FOLDER                        # in an unpacked bundle (scripts/make-bundle.sh --tests)
    tests/gpu/first_hour.py --out FOLDER --part probe,starts    # some parts; each takes less than ten minutes
    tests/gpu/first_hour.py --out FOLDER --bundle build/release --device softgpu --quick

Parts: probe (the driver without gpupool), starts, parity, sessions, copies, workloads, memory, sharing. Earlier results in the folder are
kept, so parts can be run by several commands: a part whose time (--budget) is over continues there the next time. Several commands may
write to one folder at a time; a last one with --part none makes the report of all. Writes results.jsonl while it
runs, report.md and report.json, and log.txt with the output of failed programs. Needs only Python's standard library; uses PyTorch, JAX
and CuPy if they are installed. Exits with 1 if a step failed, with 2 and the reason if it cannot start.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
import run as comparison  # noqa: E402
from hour import basics, loads  # noqa: E402
from hour.machine import Machine  # noqa: E402
from hour.records import PARTS, Failure, OtherDevice, Records, Skip  # noqa: E402

STEPS = {"probe": basics.probe, "starts": basics.starts, "parity": basics.parity, "sessions": basics.sessions, "copies": loads.copies,
         "workloads": loads.workloads, "memory": loads.memory, "sharing": loads.sharing}
INDEPENDENT = ("probe", "starts", "parity", "sessions")  # parts whose steps need nothing of each other: --jobs applies

GRACE = 50  # seconds that a step may exceed its part's budget; a part then still takes less than ten minutes


def run_step(machine, records, part, name, step):
    begin = time.monotonic()
    try:
        records.add(part, name, "ok", seen=step(), seconds=time.monotonic() - begin)
    except Skip as reason:
        records.add(part, name, "skipped", time.monotonic() - begin, why=str(reason))
    except Failure as failure:
        seen = {key: value for key, value in failure.seen.items() if key != "output"}
        if time.monotonic() < machine.deadline - 1:
            records.add(part, name, "failed", time.monotonic() - begin, seen, str(failure))
        else:
            records.add(part, name, "not begun", time.monotonic() - begin, seen, f"cut off with its part: {failure}")
    except Exception as error:  # run the other steps in any case
        records.add(part, name, "failed", time.monotonic() - begin, why=f"{type(error).__name__}: {error}")
    records.write_report()


def run_part(machine, records, part, budget, jobs=1, chosen=re.compile("")):
    stop = time.monotonic() + budget
    machine.deadline = stop + GRACE
    steps = STEPS[part](machine)

    def run_in_time(name, step):
        if time.monotonic() > stop:
            records.add(part, name, "not begun", why=f"the part's {budget} s are over: run it again to go on")
        else:
            run_step(machine, records, part, name, step)

    try:
        wanted = ((name, step) for name, step in steps if chosen.search(name) and not records.has(part, name))
        if jobs > 1 and part in INDEPENDENT:
            with concurrent.futures.ThreadPoolExecutor(jobs) as runners:
                for name, step in wanted:
                    runners.submit(run_in_time, name, step)
        else:
            for name, step in wanted:
                run_in_time(name, step)
    except Exception as error:  # something that all further steps need is missing, for example poold
        status = "skipped" if isinstance(error, Skip) else "failed"
        records.add(part, "the other steps", status, why=f"{error}")
    finally:
        steps.close()
        records.write_report()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Parts: " + ", ".join(PARTS))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for results and report; what it has is kept")
    parser.add_argument("--part", default=",".join(PARTS), help="parts to run, with commas [all]")
    parser.add_argument("--device", default="nvidia", help="nvidia, the path of a device library, or softgpu to try the script [nvidia]")
    parser.add_argument("--bundle", type=pathlib.Path, default=HERE.parent.parent, help="bundle, or build folder [where this file is]")
    parser.add_argument("--budget", type=int, default=540, help="seconds after which a part begins no further step [540]")
    parser.add_argument("--probe-limit", type=float, default=basics.PROBE_SECONDS, help="seconds for one probe")
    parser.add_argument("--jobs", type=int, default=1, help=f"steps at a time of {', '.join(INDEPENDENT)}; their times are then not to be used [1]")
    parser.add_argument("--steps", type=re.compile, default="", help="regular expression: only steps whose names contain it")
    parser.add_argument("--poold-option", action="append", default=[], help="option for each poold that this script starts; may be repeated")
    parser.add_argument("--again", action="store_true", help="forget what the folder has of these parts")
    parser.add_argument("--quick", action="store_true", help="few steps of small sizes: does it work at all?")
    given = parser.parse_args()
    given.parts = [part for part in PARTS if part in given.part.split(",")]
    unknown = set(given.part.split(",")) - {*PARTS, "none"}
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if given.device not in ("nvidia", "softgpu"):
        given.device = str(pathlib.Path(given.device).resolve())
    return given


def main():
    given = parse()
    STEPS["probe"] = lambda machine: basics.probe(machine, given.probe_limit)
    try:
        records = Records(given.out, given.device, given.parts if given.again else ())
    except OtherDevice as reason:
        print(f"Not ready: {reason}", file=sys.stderr)
        return 2
    if "GPUPOOL" in os.environ:
        print("Not ready: GPUPOOL is set: this would compare the pool with itself; run it without pool-run", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpupool-") as scratch:
        try:
            machine = Machine(comparison.unpacked(given.bundle.resolve(), scratch), given.device, given.quick, records, options=given.poold_option)
        except comparison.NotReady as reason:
            print(f"Not ready: {reason}", file=sys.stderr)
            return 2
        try:
            for part in given.parts:
                run_part(machine, records, part, given.budget, given.jobs, given.steps)
            records.write_report()
        finally:
            machine.close()
    failed = sum(records.count(part, "failed") for part in given.parts)
    print(f"{failed} failed; {given.out / 'report.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
