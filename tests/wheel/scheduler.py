"""A pool-scheduler for the duration of `with`, and questions to it."""
import json
import pathlib
import subprocess
import tempfile
import time

START_SECONDS = 60
STOP_SECONDS = 30
PATIENCE = 120  # seconds


def eventually(condition, what):
    """Waits until condition() is true. Raises TimeoutError after PATIENCE seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"timed out waiting until {what}")
        time.sleep(0.05)


class Scheduler:
    def __init__(self, programs):
        self.programs = pathlib.Path(programs)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-")
        folder = pathlib.Path(self.folder.name)
        self.log = open(folder / "log", "w+")
        key, port = folder / "key.pem", folder / "port"
        self.process = subprocess.Popen(
            [self.programs / "pool-scheduler", "--listen", "127.0.0.1:0", "--port-file", port, "--store",
             f"sqlite:{folder / 'pool.db'}", "--key", key], stdout=self.log, stderr=self.log)
        try:
            eventually(lambda: port.exists() or self.process.poll() is not None, "pool-scheduler starts")
            if self.process.poll() is not None:
                raise RuntimeError("pool-scheduler did not start:\n" + (folder / "log").read_text())
            self.address = f"127.0.0.1:{port.read_text().strip()}"
            self.public_key = folder / "public.pem"
            with open(self.public_key, "w") as file:
                subprocess.run([self.programs / "pool-scheduler", "--key", key, "--print-public-key"], stdout=file, check=True)
        except BaseException:
            self.__exit__()
            raise
        self.url = f"pool://{self.address}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def ask(self, *words):
        """Returns the answer of pool-admin, for example to `leases` or `queue`."""
        done = subprocess.run([self.programs / "pool-admin", "--scheduler", self.address, "--json", *words], capture_output=True,
                              text=True, check=True)
        return json.loads(done.stdout)

    def await_idle(self):
        eventually(lambda: not self.ask("leases") and not self.ask("queue"), "all leases and requests are gone")

    def node_options(self, name):
        """Returns the options of a poold that belongs to the pool."""
        return ["--pool-name", name, "--pool-scheduler", self.address, "--pool-public-key", str(self.public_key), "--peers", "127.0.0.0/8"]
