"""Tests the setting of the driver version that programs see.

    driver_version.py VARIABLE FOLDER LIST

VARIABLE is GPUPOOL_DRIVER_VERSION, for programs on a pool, or SOFTGPU_DRIVER_VERSION, for programs that load softgpu.
FOLDER and LIST are those of runtimes.py, whose program is run on some runtimes. Exits with 77 if a runtime cannot be
downloaded.
"""
import os
import pathlib
import re
import subprocess
import sys

from runtimes import download, listed

PROGRAM = pathlib.Path(__file__).with_name("runtimes.py")
# (driver version, runtime). CUDA works with an older driver of the same major version, and with any newer one.
WORK = [("11.8", "11.8.89"), ("12.2", "12.2.140"), ("12.2", "12.9.79"), ("13.0", "13.5.37"), ("13.1", "13.5.37"), ("13.4", "13.5.37"),
        ("13.5", "13.5.37"), ("13.5", "12.8.90"), ("13.5", "11.8.89")]
INSUFFICIENT = [("12.8", "13.0.96"), ("11.8", "12.0.146")]
REFUSED = ["13", "13.99", "10.2", "new"]


def run(variable, told, version, path):
    number = int(told.split(".")[0]) * 1000 + int(told.split(".")[1]) * 10
    return subprocess.run([sys.executable, PROGRAM, "--run", path, version, str(number)], env={**os.environ, variable: told},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


def ask(variable, told):
    """Returns the result of cuInit, the driver version and the output of libcuda.so.1, without a runtime."""
    ask = "import ctypes as c; d = c.CDLL('libcuda.so.1'); n = c.c_int(); r = d.cuInit(0); d.cuDriverGetVersion(c.byref(n)); print(r, n.value)"
    return subprocess.run([sys.executable, "-c", ask], env={**os.environ, variable: told}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120).stdout


def main():
    variable, folder, releases = sys.argv[1:]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    packages = {version: package for package, version in listed(releases)}
    failed = []
    for told, version in WORK + INSUFFICIENT:
        path = download(folder, packages[version], version)
        if path is None:
            print(f"skipped: {packages[version]} {version} cannot be downloaded from PyPI")
            return 77
        done = run(variable, told, version, path)
        works = (told, version) in WORK
        if (done.returncode == 0) != works or (not works and "cudaErrorInsufficientDriver" not in done.stdout):
            failed.append((told, version))
            print(f"driver version {told}, runtime {version}: exited with {done.returncode}\n{done.stdout}")
    for wrong in REFUSED:
        said = ask(variable, wrong)
        if not re.search(f"{variable}={wrong}: .*a CUDA version from 11.7 to 13.5", said):
            failed.append(wrong)
            print(f"{variable}={wrong}:\n{said}")
    print("failed:" if failed else "all driver versions are reported correctly", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
