#!/usr/bin/env python3
"""Runs pool-sim with and without moves on every trace of a folder and prints the table of docs/placement.md.

    scripts/defragmentation-table.py FOLDER [--offered 85,95] [--pool-sim build/release/bin/pool-sim] [--every 10]

FOLDER has a file of nodes, openb_node_list_gpu_node.csv or --nodes, and traces, openb_pod_list_*.csv, in the format of
https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023). Every tenth node is used (--every), because the traces
have too few tasks to fill all of them. Traces without times get random durations of an hour on average. Other options are passed to
pool-sim.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

GIB = 1 << 30


def simulate(arguments, nodes, trace, offered, seed):
    words = [arguments.pool_sim, "--nodes", nodes, "--tasks", trace, "--mode", arguments.mode, "--replay", "--reserve", "--defragment"]
    words += ["--offered", offered, "--draws", arguments.draws, "--seed", seed, "--json", "-", *arguments.more]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"defragmentation-table: {' '.join(map(str, words))} failed with status {done.returncode}")
    return json.loads(done.stdout)["runs"]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def waits(runs, size=None):
    waiting = [run["waiting_seconds_by_size"].get(size) if size else run["waiting_seconds"] for run in runs]
    if None in waiting:
        return "-"
    return " / ".join(f"{mean(one[key] for one in waiting):.0f}" for key in ("mean", "p50", "p99"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--nodes", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--offered", default="85,95")
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3, help="runs with different tasks, whose figures are averaged")
    parser.add_argument("--mode", default="one-host")
    parser.add_argument("--pool-sim", type=pathlib.Path, default="build/release/bin/pool-sim")
    arguments, arguments.more = parser.parse_known_args()
    traces = sorted(arguments.folder.glob("openb_pod_list_*.csv"))
    if not traces:
        sys.exit(f"defragmentation-table: no openb_pod_list_*.csv in {arguments.folder}")
    head, *rows = (arguments.nodes or arguments.folder / "openb_node_list_gpu_node.csv").read_text().splitlines()

    print("| trace, offered load | allocated % | wait s: mean / p50 / p99 | of several GPUs | moves / h | GiB / h |")
    print("|---|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as nodes:
        nodes.write("\n".join([head, *rows[::arguments.every]]) + "\n")
        nodes.flush()
        for trace in traces:
            for offered in arguments.offered.split(","):
                seeds = [simulate(arguments, nodes.name, trace, offered, 1 + seed) for seed in range(arguments.seeds)]
                for runs in zip(*seeds):
                    name = f"{trace.stem.removeprefix('openb_pod_list_')}, {offered} %"
                    moves = [run.get("defragmentation", {"moves_per_hour": 0, "bytes_per_hour": 0}) for run in runs]
                    print(f"| {name}{', moves' if runs[0]['defragment'] else ''} "
                          f"| {mean(run['mean_allocated_percent'] for run in runs):.2f} "
                          f"| {waits(runs)} | {waits(runs, 'several GPUs')} "
                          f"| {mean(one['moves_per_hour'] for one in moves):.2f} "
                          f"| {mean(one['bytes_per_hour'] for one in moves) / GIB:.1f} |", flush=True)


if __name__ == "__main__":
    main()
