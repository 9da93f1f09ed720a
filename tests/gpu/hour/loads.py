"""Parts 5 to 8: copies, frameworks' workloads, memory, and programs that share the GPU."""
import functools
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import run as comparison
import workloads as framework_workloads

from .machine import PROGRAMS, Companion
from .records import Failure, Skip

MiB, GiB = 1 << 20, 1 << 30


def sized(size):
    return f"{size // GiB}GiB" if size >= GiB else f"{size // MiB}MiB"


def on(machine, pool, way, **more):
    return machine.bare(**more) if way == "bare" else machine.pooled(pool, way, **more)


# --- 5. Copies ---

def copy(machine, pool, way, kind, size):
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > machine.free_bytes() // 2 or size > host // 4:
        raise Skip("the device or the host has too little memory")
    figures = machine.figures([machine.program("bin/gpupool-bench-workload"), kind, size], on(machine, pool, way), 60 + size * 40 / GiB)
    return {name.split("_")[0] + "_GBps": value for name, value in figures.items()}


def app(machine, pool, way, *words, seconds=90):
    begin = time.monotonic()
    machine.run([machine.program("tests/driver_app"), *words], on(machine, pool, way), seconds)
    return {"s": time.monotonic() - begin}


def copies(machine):
    sizes = [MiB, 16 * MiB] if machine.quick else [MiB, 64 * MiB, 256 * MiB, 512 * MiB, GiB, 4 * GiB]
    with machine.pool() as pool:
        for size in sizes:
            for way in ("bare", "tcp", "shm"):
                for kind in ("pinned", "pageable"):
                    yield f"{kind}_{sized(size)}_{way}", functools.partial(copy, machine, pool, way, kind, size)
        behind = 16 * MiB if machine.quick else 512 * MiB
        scenarios = ["launches_behind_a_host_function"] + ([] if machine.quick else ["copies_behind_a_host_function", "one_of_64_streams_waits"])
        for way in ("tcp", "shm"):  # not bare: the driver would block the program, which must release its own work
            yield f"launches_behind_{sized(behind)}_{way}", functools.partial(app, machine, pool, way, "launches_behind_a_large_copy", behind)
            for scenario in scenarios:
                yield f"{scenario}_{way}", functools.partial(app, machine, pool, way, scenario)


# --- 6. Frameworks ---

def workload(machine, pool, name, seconds):
    environments = {**comparison.environments_of(pool, machine.tree), "bare": machine.bare()}
    results = {}
    for way in comparison.WAYS:
        words = name, machine.quick, environments[way], machine.limit(seconds)
        result = comparison.run(*words) if way == "bare" else comparison.run_pooled(pool, *words)
        results[way] = comparison.summarised([result])
        if "skipped" in result or (way == "bare" and "failed" in result):
            break
    row = comparison.row_of(name, results)
    if row["verdict"].startswith("skipped: "):
        raise Skip(row["verdict"][len("skipped: "):])
    seen = {f"{way}_ms": 1000 * result["seconds"] for way, result in results.items() if "seconds" in result}
    seen.update({f"{way}_ratio": result["ratio"] for way, result in results.items() if "ratio" in result})
    if not row["good"] or "failed" in results["bare"]:
        machine.records.log(name, json.dumps(results, indent=1))
        raise Failure(row["verdict"], seen)
    return {**seen, "results": row["verdict"]}


def round_trips(machine, pool, name, seconds):
    """Counts the calls and round trips of a whole run, together with its number of steps."""
    with tempfile.TemporaryDirectory(prefix="gpupool-") as folder:
        environment = machine.pooled(pool, "tcp", GPUPOOL_STATS="1", GPUPOOL_TRACE_FILE=f"{folder}/%p")
        command = [sys.executable, pathlib.Path(framework_workloads.__file__), name] + (["--quick"] if machine.quick else [])
        result = machine.run_json(command, environment, seconds)
        said = max((path.read_text() for path in pathlib.Path(folder).iterdir()), key=len, default="")
    if not said:
        raise Failure("the client library has not counted anything")
    return {"steps": len(result["seconds"]), "calls": [line.split("gpupool: ", 1)[-1].strip() for line in said.splitlines()]}


def one_way(machine, pool, name, seconds):
    """Runs a workload without accounting, and adds the earlier result with accounting."""
    seen = comparison.summarised([comparison.run_pooled(pool, name, machine.quick, machine.pooled(pool, "shm"), machine.limit(seconds))])
    if "skipped" in seen:
        raise Skip(seen["skipped"])
    if "failed" in seen:
        raise Failure(seen["failed"])
    before = machine.records.steps.get(("workloads", name), {}).get("seen", {}).get("shm_ms")
    return {"shm_ms": 1000 * seen["seconds"], **({"with_accounting_ms": before} if before else {})}


def workloads(machine, seconds=150):
    names = ["driver"] if machine.quick else list(framework_workloads.WORKLOADS)
    with machine.pool() as pool:
        for name in names:
            yield name, functools.partial(workload, machine, pool, name, seconds)
        for name in names:
            yield f"round_trips_{name}", functools.partial(round_trips, machine, pool, name, seconds)
    with machine.pool(GPUPOOL_ACCOUNTING="off") as pool:
        for name in names if machine.quick else ("driver", "torch_transformer", "torch_inference"):
            yield f"accounting_off_{name}", functools.partial(one_way, machine, pool, name, seconds)


# --- 7. Memory ---

def helper(machine, *words):
    return [sys.executable, PROGRAMS, *words]


def fill(machine, pool, way, beside=False):
    command = helper(machine, "fill")
    if not beside:
        return machine.run_json(command, on(machine, pool, way), 120)
    with Companion(helper(machine, "hold", "25"), machine.pooled(pool, way)) as other:
        held = int(other.line(60))
        seen = machine.run_json(command, on(machine, pool, way), 120)
        other.ask(seconds=30)  # the other program continues with its memory
    return {**seen, "other_MiB": held // MiB}


def torch_fill(machine, pool, way, setting):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
    return machine.run_json(helper(machine, "torch_fill"), on(machine, pool, way, **settings), 120)


def workers_of(pool):
    """Returns the process ids of the sessions' workers, in the order of their start."""
    return [int(number) for number in re.findall(r"session_started.* worker=(\d+)", pool.said())]


def worker_memory(machine, pool, clients=4):
    """Measures the device and host memory of a session whose program has allocated nothing."""
    idle = [machine.program("bin/gpupool-bench-workload"), "idle"]
    with Companion(helper(machine, "free"), machine.bare(beside_pool=True)) as watch:
        before = int(watch.line(60))
        running = [Companion(idle, machine.pooled(pool, "shm")) for _ in range(clients)]
        try:
            for each in running:
                each.line(60)
            after = int(watch.ask())
            resident = [int(line.split()[1]) / 1024 for worker in workers_of(pool)[-clients:] for line in pathlib.Path(f"/proc/{worker}/status").read_text().splitlines()
                        if line.startswith("VmRSS")]
        finally:
            for each in running:
                each.__exit__()
    return {"device_MiB_each": (before - after) / clients / MiB, "host_MiB_each": sum(resident) / max(1, len(resident))}


def memory(machine):
    with machine.pool() as pool:
        for way in ("bare", "tcp", "shm"):
            yield f"fill_{way}", functools.partial(fill, machine, pool, way)
        yield "fill_beside_another", functools.partial(fill, machine, pool, "shm", beside=True)
        for name, setting in (("native", ""), ("expandable", "expandable_segments:True"), ("async", "backend:cudaMallocAsync")):
            for way in ("bare", "shm"):
                yield f"torch_{name}_{way}", functools.partial(torch_fill, machine, pool, way, setting)
        yield "worker", functools.partial(worker_memory, machine, pool)


# --- 8. Sharing ---

def sharing_part(machine, part):
    with tempfile.TemporaryDirectory(prefix="gpupool-") as folder:
        file = pathlib.Path(folder, "figures.json")
        machine.run([machine.program("bin/gpupool-bench"), "--suite", "sharing", "--quick", "--only", part, "--device", machine.device, "--json", file],
                    machine.bare(), 180)
        figures = json.loads(file.read_text())["results"]
    seen = {}
    for figure in figures:  # a figure with two limits occurs twice
        seen[figure["name"]] = f"{figure['value']} {figure['unit']}" + (f" ({figure['target']})" if figure["target"] else "")
    return seen


def kill_worker(machine, pool, percent=80):
    """Kills a worker that holds most of the memory. Measures the time until the memory is free, and until another program has allocated it."""
    hold = helper(machine, "hold", str(percent))
    with Companion(helper(machine, "free"), machine.bare(beside_pool=True)) as watch:
        before = int(watch.line(60))
        with Companion(hold, machine.pooled(pool, "shm")) as holder:
            held = int(holder.line(120))
            missing = before - int(watch.ask())
            os.kill(workers_of(pool)[-1], signal.SIGKILL)
            killed, free = time.monotonic(), 0
            while free < before - missing // 50:
                if time.monotonic() > killed + 60:
                    raise Failure("60 s after the kill the memory is not back", {"held_MiB": held // MiB, "still_missing_MiB": (before - free) // MiB})
                free = int(watch.ask())
            back = time.monotonic()
            try:
                told = holder.ask(seconds=30)
            except Failure as ended:
                told = str(ended)
            if told == "written":
                raise Failure("the program does not notice that its worker is gone")
        with Companion(hold, machine.pooled(pool, "shm")) as next_one:
            again = int(next_one.line(120))
    if again < held * 98 // 100:
        raise Failure(f"the next program gets {again // MiB} MiB, not {held // MiB}")
    return {"held_MiB": held // MiB, "back_s": back - killed, "next_has_it_s": time.monotonic() - back, "program": told}


def sharing(machine):
    for part in ("two",) if machine.quick else ("two", "shapes", "hard", "elastic", "priorities", "accounting", "memory", "bandwidth", "shares", "partitions"):
        yield part, functools.partial(sharing_part, machine, part)
    with machine.pool() as pool:
        yield "kill_worker", functools.partial(kill_worker, machine, pool)
