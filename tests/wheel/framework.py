#!/usr/bin/env python3
"""framework.py [--set NAME=VALUE ...] BUILD ENVIRONMENT PACKAGES PROGRAM: runs a program of programs/ that uses a framework in the
environment of environment.py, where it also sees the packages of the environment PACKAGES (tests/support/make_python.sh). poold
and the program get the settings. Exit status 77: the wheel or the packages are missing."""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from environment import SKIPPED, Environment, skip_unless_installed, site_packages  # noqa: E402
from pool import Pool  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    for name in ("build", "environment", "packages"):
        parser.add_argument(name, type=lambda word: pathlib.Path(word).resolve())
    parser.add_argument("program")
    given = parser.parse_args()
    skip_unless_installed(given.environment)
    if not (given.packages / "done").exists():
        print("skipped: its Python packages could not be downloaded")
        return SKIPPED
    settings = dict(pair.split("=", 1) for pair in given.set)
    with Pool(given.build / "bin", given.build / "lib" / "client", settings=settings) as pool:
        done = Environment(given.environment).program(given.program, pool.url, PYTHONPATH=str(site_packages(given.packages)), **settings)
        print(done.stdout + done.stderr, end="")
        if done.returncode:
            print("poold printed:\n" + pool.said(), file=sys.stderr)
        return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main())
