"""Runs programs one after the other on one of two poolds, while their sessions move between the two at random moments.

    moves.py [--set NAME=VALUE ...] [--seed N] [--moves N] --python FOLDER BUILD PROGRAM...

In one move of ten, at random, the worker that the session moves to is killed: the session must go on at the other
pool, or, if it had moved before, its program must fail. The programs check their results. They are run again until
there were --moves moves. Fails if a program fails without having lost its worker, or if nothing moved. --set and
--python: as for pool.py.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from pool import Pool

LONGEST_PAUSE = 0.06  # seconds between two moves
PROGRAM_SECONDS = 600
OPTIONS = ("--resume-timeout", "60", "--peers", "127.0.0.0/8")


class Mover:
    """Moves sessions between two pools, and counts what came of it."""

    def __init__(self, pools, seed):
        self.pools = pools
        self.random = random.Random(seed)
        self.moves = self.refused = self.killed = 0
        self.may_be_lost = False  # a killed worker may have been the only one that had the session

    def admin(self, pool, *words):
        command = [pool.programs / "pool-admin", "--poold", f"unix:{pool.admin_socket}", "--json", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def sessions(self, pool):
        listed = self.admin(pool, "sessions")
        output, _ = listed.communicate()
        return json.loads(output) if listed.returncode == 0 else []

    def move_one(self):
        """Moves a session of either pool to the other one, if there is one."""
        places = [(pool, session) for pool in self.pools for session in self.sessions(pool)]
        time.sleep(self.random.random() * LONGEST_PAUSE)
        if not places:
            return
        source, session = self.random.choice(places)
        target = self.pools[1 - self.pools.index(source)]
        before = {other["number"] for other in self.sessions(target)}
        admin = self.admin(source, "migrate", str(session["number"]), "--to", target.url, "--timeout", "30")
        killed = self.random.randrange(10) == 0 and self.kill_new_worker(target, before)
        admin.communicate()
        if admin.returncode == 0:
            self.moves += 1
            self.may_be_lost |= killed
        else:
            self.refused += 1

    def kill_new_worker(self, pool, before):
        time.sleep(self.random.random() * LONGEST_PAUSE)
        arrived = [session for session in self.sessions(pool) if session["number"] not in before]
        if arrived:
            os.kill(arrived[0]["worker_pid"], signal.SIGKILL)
            self.killed += 1
        return bool(arrived)


def run(program, mover, environment):
    """Runs a program and moves its sessions until it ends. Returns its exit status and output."""
    mover.may_be_lost = False
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(program, env=environment, stdout=output, stderr=output) as process:
            stop = time.monotonic() + PROGRAM_SECONDS
            while process.poll() is None:
                if time.monotonic() > stop:
                    process.kill()
                mover.move_one()
        output.seek(0)
        return process.returncode, output.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--moves", type=int, default=1)
    parser.add_argument("--python", metavar="FOLDER", required=True)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("programs", nargs="+")
    given = parser.parse_args()
    if not pathlib.Path(given.python, "done").exists():
        print("skipped: its Python packages could not be downloaded")
        return 77
    python = pathlib.Path(given.python, "bin", "python")
    settings = dict(pair.split("=", 1) for pair in given.set)

    def pool(name):
        own = {**settings, "SOFTGPU_INSTANCE": f"moves-{os.getpid()}-{name}"}
        return Pool(given.build / "bin", given.build / "lib" / "client", settings=own, options=OPTIONS)

    with pool("one") as one, pool("other") as other:
        mover, lost = Mover([one, other], given.seed), 0
        while mover.moves < given.moves:
            before = mover.moves
            for program in given.programs:
                status, output = run([python, program], mover, one.environment(GPUPOOL_SHM="0", **settings))
                if status and mover.may_be_lost:
                    lost += 1
                elif status:
                    print(f"{program}: exit status {status}, seed {given.seed}\n{output}\nthe first poold printed:\n{one.said()}\n"
                          f"the other one:\n{other.said()}", file=sys.stderr)
                    return 1
            if mover.moves == before:
                print("no session has moved", file=sys.stderr)
                return 1
        print(f"{mover.moves} moves, {mover.refused} refused or given up, {mover.killed} workers killed, {lost} programs lost, "
              f"seed {given.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
