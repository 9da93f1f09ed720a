"""Runs the test suites of other projects (suites.py) through poold and directly on softgpu, and compares the results.

See scripts/try-others.sh for the usage. Each program runs once in each way, with a time limit; its logs are kept in
FOLDER/results/SUITE.
"""
import argparse
import concurrent.futures
import fnmatch
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import pool as pools  # noqa: E402
import suites  # noqa: E402

WAYS = ("direct", "pool")
GOOD = ("passed", "skipped", "in part")  # prefixes of outcomes that are not failures
WAIVED = {"cuda-samples": 2}  # exit status of a program that cannot run on this device
BUILD_SECONDS = 3600
SUMMARY_SECONDS = 60  # after the time limit, for the current test to end (at most the limit itself)
LEAST_SECONDS, NOTABLE_RATIO = 0.1, 1.3  # for the comparison of run times


def expectations(suite):
    """Returns [(name pattern, way or "both", reason)] from SUITE.txt, which has lines `NAME WAY REASON` and comments with #."""
    rows = []
    path = HERE / "expectations" / f"{suite}.txt"
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.strip() and not line.startswith("#"):
            pattern, way, reason = line.split(None, 2)
            if way not in (*WAYS, "both", "build"):
                raise SystemExit(f"{path}: '{way}' is not one of direct, pool, both, build")
            rows.append((pattern, way, reason))
    return rows


def row_for(rows, name, way):
    return next((row for row in rows if fnmatch.fnmatchcase(name, row[0]) and (row[1] == way or row[1] == "both" and way in WAYS)), None)


def tests_in(log):
    """Returns the numbers of "passed", "failed" and "skipped" tests from the last lines of unittest or pytest; None without them."""
    text = log.read_text(errors="replace")
    if ran := re.search(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?\s*\Z", text, re.MULTILINE):
        named = {name: int(number) for name, number in re.findall(r"([a-z ]+)=(\d+)", ran[2] or "")}
        failed = sum(number for name, number in named.items() if "skipped" not in name and "expected" not in name)
        return {"passed": int(ran[1]) - failed - named.get("skipped", 0), "failed": failed, "skipped": named.get("skipped", 0)}
    for line in reversed(text.rstrip().splitlines()[-3:]):
        if re.search(r"\bin [\d.]+s", line):
            named = {name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|error|skipped|xfailed|xpassed)", line)}
            passed = named.get("passed", 0) + named.get("xfailed", 0) + named.get("xpassed", 0)
            return {"passed": passed, "failed": named.get("failed", 0) + named.get("error", 0), "skipped": named.get("skipped", 0)}
    return None


NO_TESTS = 5  # exit status of pytest and unittest if a module skips itself


def skipped_all(log):
    """True if according to the summary of unittest, pytest or ggml no test passed or failed."""
    if re.search(r"^ *0/0 tests passed$", log.read_text(errors="replace"), re.MULTILINE):
        return True
    tests = tests_in(log)
    return tests is not None and not tests["passed"] and not tests["failed"]


def ended(process, seconds):
    """Waits for the process. Returns its exit status, or None after `seconds`; then the process first gets SIGINT and time to
    print a summary."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(min(seconds, SUMMARY_SECONDS))
    except subprocess.TimeoutExpired:
        pass
    return None


def outcome(command, folder, environment, log, seconds, waived):
    """Runs a program and kills its process group at the end. Returns "passed", "waived", "skipped" (all tests skipped), "in part:
    ..." (time limit reached) or the failure."""
    with open(log, "w") as out:
        try:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        except OSError as failure:
            return f"does not start: {failure}"
        try:
            status = ended(process, seconds)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    if status is None:
        tests = tests_in(log) or {"passed": 0, "failed": 0}
        if tests["failed"]:
            return f"{tests['failed']} failed in {seconds} s"
        return f"in part: {tests['passed']} tests passed in {seconds} s" if tests["passed"] else f"not done after {seconds} s"
    if status in (0, NO_TESTS) and skipped_all(log):
        return "skipped"
    if status == 0:
        return "passed"
    return "waived" if status == waived else f"status {status}"


class Run:
    def __init__(self, given, suite, checkout, pool, build):
        self.given, self.suite, self.checkout, self.pool, self.build = given, suite, checkout, pool, build
        self.results = pathlib.Path(given.folder, "results", suite).resolve()
        self.results.mkdir(parents=True, exist_ok=True)
        self.building = threading.Lock()
        self.seconds = {}  # {(program, way): run time}

    def environment(self, program, way, number):
        settings = {**program.settings, "PYTHONDONTWRITEBYTECODE": "1"}
        for name in [name for name in settings if name.endswith("_PATH")]:
            settings[name] = str(self.results / settings[name])
        if way == "pool":
            return self.pool.environment(**settings)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL")}
        return {**clean, **self.pool.settings, **settings, "SOFTGPU_INSTANCE": f"{self.pool.settings['SOFTGPU_INSTANCE']}-{number}",
                "LD_LIBRARY_PATH": ":".join(filter(None, [str(self.build / "lib" / "softgpu"), os.environ.get("LD_LIBRARY_PATH")]))}

    def program(self, number, program):
        """Runs one program. Returns its name and {way: outcome}, or {"build": error} if it was not built."""
        if isinstance(program.build, str):
            return program.name, {"build": f"left out: {program.build}"}
        log = self.results / f"{program.name}.build.log"
        log.unlink(missing_ok=True)
        with self.building:
            failure = suites.built(program, log, BUILD_SECONDS)
        if failure:
            return program.name, {"build": failure}
        results = {"pool": self.once(number, program, "pool")} if self.given.quick else {}
        if not results.get("pool", "").startswith(GOOD):
            results = {way: self.once(number, program, way) for way in WAYS}
        if self.given.repeat and set(results.values()) == {"passed"}:
            self.measure(number, program)
        return program.name, results

    def once(self, number, program, way):
        begin, log = time.monotonic(), self.results / f"{program.name}.{way}.log"
        result = outcome(program.command, program.folder, self.environment(program, way, number), log, self.given.seconds,
                         WAIVED.get(self.suite))
        self.seconds[program.name, way] = time.monotonic() - begin
        return result

    def measure(self, number, program):
        """Replaces the times of the first runs, which fill caches, by the medians of `repeat` more runs in each way, alternating."""
        seconds = {way: [] for way in WAYS}
        for _ in range(self.given.repeat):
            for way in WAYS:
                if self.once(number, program, way) == "passed":
                    seconds[way].append(self.seconds[program.name, way])
        for way in WAYS:
            self.seconds[program.name, way] = statistics.median(seconds[way] or [self.seconds[program.name, way]])

    def all(self):
        chosen = [program for program in suites.SUITES[self.suite](self.checkout, self.results, self.given.python)
                  if fnmatch.fnmatchcase(program.name, self.given.only)]
        results, begin = {}, time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.given.jobs) as workers:
            waiting = [workers.submit(self.program, number, program) for number, program in enumerate(chosen)]
            for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
                name, results[name] = future.result()
                said = ", ".join(f"{way}: {result}" for way, result in results[name].items())
                print(f"{self.suite} {done}/{len(chosen)} {time.monotonic() - begin:.0f} s {name}: {said}", flush=True)
        return results


def judged(suite, results):
    """Returns (counts, new failures, expected failures that did not happen)."""
    rows = expectations(suite)
    counts, new, used = {}, [], set()
    for name, ways in sorted(results.items()):
        for way, result in ways.items():
            row = row_for(rows, name, way)
            kind = result.split(":")[0] if result.startswith((*GOOD, "waived", "left out")) else "expected" if row else "new"
            counts[way, kind] = counts.get((way, kind), 0) + 1
            if kind == "new":
                new.append((name, way, result))
            elif kind == "expected":
                used.add(row)
    unused = [row for row in rows if row not in used and any(fnmatch.fnmatchcase(name, row[0]) for name in results)]
    return counts, new, unused


def print_ratios(results, seconds):
    """Prints the ratios of run times, pool to direct. Meaningful with --jobs 1 --repeat 3 on an idle machine."""
    ratios = {name: seconds[name, "pool"] / seconds[name, "direct"] for name, ways in results.items()
              if ways.get("direct") == ways.get("pool") == "passed" and seconds[name, "direct"] > LEAST_SECONDS}
    if not ratios:
        return
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    print(f"  time, pool to direct: geometric mean {mean:.2f} of the {len(ratios)} programs that take over {LEAST_SECONDS} s directly")
    for name, ratio in sorted(ratios.items(), key=lambda row: -row[1]):
        if ratio > NOTABLE_RATIO:
            print(f"    {ratio:5.2f} {name} {seconds[name, 'direct']:.2f} s directly")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--suite", choices=suites.SUITES)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build" / "release")
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60, help="time limit of one run of a program")
    parser.add_argument("--quick", action="store_true", help="run a program directly only if it does not pass through the pool")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="run programs that pass N more times in each way, for the ratios of run times")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    build = given.build.resolve()
    names = [given.suite] if given.suite else list(suites.SUITES)
    found = {name: checkout for name in names if (checkout := suites.checkout_of(given.folder, name))}
    if not found:
        parser.error(f"{given.folder} has no checkout named {', '.join(names)}")
    if given.list:
        for name, checkout in found.items():
            print("\n".join(f"{name} {program.name}" for program in suites.SUITES[name](checkout, given.folder, given.python)))
        return 0
    # A shell starts jobs in the background with SIGINT ignored, and the programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that poold is stopped, too
    failed = False
    for name, checkout in found.items():
        settings = {"SOFTGPU_COMPUTE_CAPABILITY": "9.0", "SOFTGPU_MEMORY": "2GiB", **suites.DEVICES.get(name, {})}
        with pools.Pool(build / "bin", build / "lib" / "client", settings=settings) as pool:
            run = Run(given, name, checkout, pool, build)
            results = run.all()
            alive = pool.process.poll() is None
        counts, new, unused = judged(name, results)
        print(f"\n{name}: " + ", ".join(f"{way} {kind} {count}" for (way, kind), count in sorted(counts.items())))
        for program, way, result in new:
            print(f"  new failure  {program:40} {way:6} {result}")
        for pattern, way, reason in unused:
            print(f"  no failure   {pattern:40} {way:6} but expected: {reason}")
        print_ratios(results, run.seconds)
        if not alive:
            print("  new failure  poold exited")
        failed = failed or bool(new) or not alive
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
