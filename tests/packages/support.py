"""Helpers of the tests of the packages: runs programs, finds and unpacks packages."""
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN = "usr/lib/gpupool"  # gpupool's own tree


def run(*words, check=True, text_input="", **options):
    """Returns the finished process, whose output is text; fails with that output if `check`."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, input=text_input,
                          text=True, check=False, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: status {done.returncode}: {done.stdout}")
    return done


def skip(name, reason):
    print(f"SKIPPED: {name}: {reason}")
    sys.exit(77)


def packages(made, suffix):
    """The packages' files by the packages' names."""
    return {file.name.split("_" if suffix == "deb" else "-0", 1)[0]: file for file in sorted(pathlib.Path(made).glob(f"*.{suffix}"))}


def unpack(deb, folder):
    run("dpkg-deb", "-x", deb, folder)
    return pathlib.Path(folder)


def files_below(folder):
    """Paths of all files and links below the folder, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_symlink() or not path.is_dir())


def is_program_or_library(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def without(environment, *names):
    return {name: value for name, value in os.environ.items() if name not in names} | environment


def main():
    """Runs the tests of the calling file, which is started as NAME_test.py BUILD MADE; they find these and the packages in its SETTINGS."""
    if len(sys.argv) != 3:
        sys.exit(sys.modules["__main__"].__doc__)
    build, made = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    sys.modules["__main__"].SETTINGS.update(build=build, made=made, debs=packages(made, "deb"), rpms=packages(made, "rpm"))
    unittest.main(argv=sys.argv[:1], verbosity=2)
