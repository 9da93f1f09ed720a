#!/usr/bin/env python3
"""environment.py install|uninstall FOLDER TOOLS WHEELS: installs the wheel of the folder WHEELS in a fresh virtual environment
FOLDER, without network access, or uninstalls it there and checks that nothing is left. TOOLS: a virtual environment with pip.
Exit status 77: there is no wheel.

Environment runs programs in that virtual environment."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
PATIENCE = 240  # seconds
SKIPPED = 77
# Settings of the tests' own environment that a user would not have.
FOREIGN = re.compile(r"GPUPOOL.*|NCCL_.*|LD_LIBRARY_PATH|PYTHONPATH")


def site_packages(environment):
    return pathlib.Path(environment, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")


def skip():
    print("skipped: the wheel was not built (wheel.build says why)")
    sys.exit(SKIPPED)


def skip_unless_installed(folder):
    if not site_packages(folder).joinpath("gpupool").exists():
        skip()


class Environment:
    """A virtual environment with the wheel."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()

    @property
    def packages(self):
        return site_packages(self.folder)

    def variables(self, **more):
        kept = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
        return {**kept, "VIRTUAL_ENV": str(self.folder), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **more}

    def command(self, *words):
        """Returns the words with the path of a program of the environment; `python` is its interpreter."""
        return [self.folder / "bin" / words[0], *words[1:]]

    def run(self, *words, **variables):
        return subprocess.run(self.command(*words), env=self.variables(**variables), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)

    def program(self, name, *words, **variables):
        """Runs a program of the folder programs/."""
        return self.run("python", PROGRAMS / f"{name}.py", *words, **variables)


def pip(folder, tools, *words):
    subprocess.run([tools / "bin" / "pip", "--python", folder / "bin" / "python", "--quiet", "--disable-pip-version-check", *words],
                   check=True)


def install(folder, tools, wheels):
    shutil.rmtree(folder, ignore_errors=True)
    if not list(wheels.glob("gpupool-*.whl")):
        skip()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    started = time.monotonic()
    pip(folder, tools, "install", "--no-index", "--find-links", wheels, "gpupool")
    print(f"installed the wheel in {time.monotonic() - started:.1f} s")


def uninstall(folder, tools, _):
    skip_unless_installed(folder)
    if not (site_packages(folder) / "gpupool-auto.pth").exists():
        sys.exit("FAILED: the start-up hook was not installed")
    pip(folder, tools, "uninstall", "--yes", "gpupool")
    left = [*site_packages(folder).glob("*"), *folder.joinpath("bin").glob("gpupool*")]
    if left:
        sys.exit(f"FAILED: uninstalling leaves {', '.join(map(str, left))}")


if __name__ == "__main__":
    {"install": install, "uninstall": uninstall}[sys.argv[1]](*(pathlib.Path(word).resolve() for word in sys.argv[2:]))
