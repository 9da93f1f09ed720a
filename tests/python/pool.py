"""Starts a poold and runs programs on it. Needs only Python's standard library.

    pool.py [--device softgpu] [--set NAME=VALUE ...] [--python FOLDER] [--pool-run] BUILD COMMAND...

starts BUILD's poold, runs COMMAND on it with the client library in place of NVIDIA's driver, and exits with COMMAND's
status. With --pool-run, BUILD's pool-run starts COMMAND. With --python, COMMAND is a program for the virtual environment
FOLDER (tests/support/make_python.sh); the exit status is 77 if that environment could not be made.
"""
import argparse
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

START_SECONDS = 60
STOP_SECONDS = 30


class Pool:
    """Runs poold for the duration of `with`. Raises RuntimeError if it does not start."""

    def __init__(self, programs, client, device="softgpu", settings=None, options=(), user=None):
        self.programs = pathlib.Path(programs)
        self.client = str(client)
        self.device = device
        self.settings = dict(settings or {})
        if device == "softgpu":
            self.settings.setdefault("SOFTGPU_INSTANCE", f"python-{os.getpid()}")
        self.options = list(options)
        self.user = user  # user that runs poold; None: the current one

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-")
        if self.user:
            shutil.chown(self.folder.name, self.user)
        port_file = pathlib.Path(self.folder.name, "port")
        self.log = open(pathlib.Path(self.folder.name, "log"), "w+")
        self.admin_socket = pathlib.Path(self.folder.name, "admin.sock")
        command = [self.programs / "poold", "--device", self.device, "--listen", "tcp://127.0.0.1:0",
                   "--port-file", port_file, "--admin-socket", self.admin_socket, *self.options]
        self.process = subprocess.Popen(command, env={**os.environ, **self.settings}, stdout=self.log, stderr=self.log,
                                        user=self.user)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not port_file.exists():
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("poold did not start:\n" + self.said())
                time.sleep(0.02)
        except BaseException:
            self.__exit__()
            raise
        self.url = f"tcp://127.0.0.1:{port_file.read_text().strip()}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.folder.cleanup()
        if self.device == "softgpu":
            for left in glob.glob(f"/dev/shm/*{self.settings['SOFTGPU_INSTANCE']}*"):
                pathlib.Path(left).unlink(missing_ok=True)  # a process of the device may have removed it

    def said(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def environment(self, **more):
        """Returns the environment of programs that run on this pool."""
        paths = [self.client] + [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
        return {**os.environ, "GPUPOOL": self.url, "LD_LIBRARY_PATH": ":".join(paths), **more}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="softgpu")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="environment variable of poold and COMMAND")
    parser.add_argument("--python", metavar="FOLDER")
    parser.add_argument("--pool-run", action="store_true")
    parser.add_argument("build")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in given.set)
    build, command = pathlib.Path(given.build), given.command
    if given.python:
        if not pathlib.Path(given.python, "done").exists():
            print("skipped: its Python packages could not be downloaded")
            return 77
        command = [pathlib.Path(given.python, "bin", "python"), *command]
    if given.pool_run:
        command = [build / "bin" / "pool-run", "--", *command]
    with Pool(build / "bin", build / "lib" / "client", given.device, settings) as pool:
        status = subprocess.run(command, env=pool.environment(**settings)).returncode
        if status:
            print("poold printed:\n" + pool.said(), file=sys.stderr)
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
