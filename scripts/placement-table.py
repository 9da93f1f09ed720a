#!/usr/bin/env python3
"""Runs the placement experiment on every trace of a folder and prints the tables of docs/placement.md.

    scripts/placement-table.py FOLDER [--seeds 10] [--pool-sim build/release/bin/pool-sim]

FOLDER has a file of nodes, openb_node_list_gpu_node.csv or --nodes, and the traces, openb_pod_list_*.csv, in the format of
https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023). The published results of a file published-allocation.csv
in FOLDER (columns trace, policy, allocated_percent_at_100, allocated_percent_at_130) are printed beside the measured ones.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys

PUBLISHED = {"random": "Random", "dotprod": "DotProd", "gpupacking": "GpuPacking", "bestfit": "BestFit", "fgd": "FGD"}


def simulate(arguments, trace, mode, policies):
    words = [arguments.pool_sim, "--nodes", arguments.nodes, "--tasks", trace, "--mode", mode, "--policy", ",".join(policies)]
    words += ["--seeds", str(arguments.seeds), "--json", "-"]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"placement-table: {' '.join(map(str, words))} failed with status {done.returncode}")
    return {run["policy"]: run for run in json.loads(done.stdout)["runs"]}


def both(run):
    return f"{run['allocated_percent_at_100']:.2f} / {run['allocated_percent_at_130']:.2f}"


def published_of(folder):
    file = folder / "published-allocation.csv"
    if not file.exists():
        return {}
    with file.open() as rows:
        return {(row["trace"], row["policy"]): (float(row["allocated_percent_at_100"]), float(row["allocated_percent_at_130"]))
                for row in csv.DictReader(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--nodes", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pool-sim", type=pathlib.Path, default="build/release/bin/pool-sim")
    arguments = parser.parse_args()
    arguments.nodes = arguments.nodes or arguments.folder / "openb_node_list_gpu_node.csv"
    traces = sorted(arguments.folder.glob("openb_pod_list_*.csv"))
    if not traces:
        sys.exit(f"placement-table: no openb_pod_list_*.csv in {arguments.folder}")
    published = published_of(arguments.folder)

    local, pool = {}, {}
    for trace in traces:
        name = trace.stem.removeprefix("openb_pod_list_")
        print(f"placement-table: {name}", file=sys.stderr)
        local[name] = simulate(arguments, trace, "local", ["fragmentation", *PUBLISHED])
        pool[name] = simulate(arguments, trace, "pool", ["fragmentation", "bestfit"])

    print("| trace | local: published FGD at 100 / 130 % | fgd here | fragmentation | pool: bestfit | pool: fragmentation | offline at 100 % |")
    print("|---|---|---|---|---|---|---|")
    for name in local:
        fgd = published.get((name, "FGD"))
        print(f"| {name} | {f'{fgd[0]:.2f} / {fgd[1]:.2f}' if fgd else ''} | {both(local[name]['fgd'])} | {both(local[name]['fragmentation'])} |"
              f" {both(pool[name]['bestfit'])} | {both(pool[name]['fragmentation'])} | {pool[name]['fragmentation']['offline_percent_at_100']:.2f} |")
    print()
    print("| trace | " + " | ".join(PUBLISHED) + " |")
    print("|---" * (len(PUBLISHED) + 1) + "|")
    for name in local:
        cells = []
        for policy, theirs in PUBLISHED.items():
            beside = published.get((name, theirs))
            cells.append(f"{local[name][policy]['allocated_percent_at_100']:.2f}" + (f" ({beside[0]:.2f})" if beside else ""))
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
