"""A pool of one scheduler and one poold with softgpu, and an installation of gpupool that all users can read."""
import json
import os
import pathlib
import shutil
import subprocess

from cluster import Daemon, eventually, free_ports

GPUS = 4


def install(build, folder):
    """Copies what nodes and users need: the layout of an installed gpupool."""
    for name in ("bin/pool-lease", "bin/pool-run", "examples/vector_add"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build / name, folder / name)
    for name in ("lib/client", "lib/slurm"):
        shutil.copytree(build / name, folder / name, symlinks=True)


class GpuPool:
    """Starts the daemons for the duration of `with`. The token of the tenant "removed" is no longer valid."""

    def __init__(self, build, folder, tenants=("research",), scheduler_options=()):
        self.scheduler_options = scheduler_options
        self.build, self.folder = pathlib.Path(build), pathlib.Path(folder)
        self.programs = self.build / "bin"
        self.environment = {**os.environ, "SOFTGPU_DEVICES": str(GPUS), "SOFTGPU_MEMORY": "1GiB",
                            "SOFTGPU_INSTANCE": f"slurm-{os.getpid()}"}
        self.tenants, self.started = tenants, []

    def __enter__(self):
        try:
            entries = "".join(self.entry(kind, name) for kind, name in
                              (("operator", "operator"), ("node", "gpus"), *(("tenant", tenant) for tenant in self.tenants), ("tenant", "removed")))
            configuration = self.folder / "pool.toml"
            configuration.write_text(entries.split("[[tenant]]\nname = \"removed\"")[0])
            # A fixed port: the scheduler is restarted while clients know its address.
            self.address = f"127.0.0.1:{free_ports(1)[0]}"
            self.scheduler = self.daemon("scheduler", [self.programs / "pool-scheduler", "--config", configuration, "--listen", self.address,
                                                       "--store", f"sqlite:{self.folder}/pool.db", "--key", self.folder / "key.pem",
                                                       "--audit-file", self.folder / "audit.json", *self.scheduler_options])
            eventually((self.folder / "key.pem").exists, "the scheduler has made its key")
            with open(self.folder / "pool.pub", "w") as out:
                subprocess.run([self.programs / "pool-scheduler", "--key", self.folder / "key.pem", "--print-public-key"], stdout=out, check=True)
            self.daemon("poold", [self.programs / "poold", "--device", "softgpu", "--listen", "tcp://127.0.0.1:0", "--pool-name", "gpus",
                                  "--pool-scheduler", self.address, "--pool-token-file", self.folder / "gpus.token",
                                  "--pool-public-key", self.folder / "pool.pub", "--admin-socket", self.folder / "admin.sock",
                                  "--resume-timeout", "0"])
            eventually(lambda: any(node["condition"] == "open" for node in self.ask("nodes") or []), lambda: f"poold is in the pool:\n{self.logs()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.started):
            daemon.stop()
        for left in pathlib.Path("/dev/shm").glob(f"*{self.environment['SOFTGPU_INSTANCE']}*"):
            left.unlink(missing_ok=True)

    def entry(self, kind, name):
        """Makes a token and returns the entry of the configuration for it."""
        made = subprocess.run([self.programs / "pool-scheduler", "--make-token"], capture_output=True, text=True, check=True).stdout
        token, line = made.splitlines()[0], made.splitlines()[-1]
        self.secret(f"{name}.token", token + "\n")
        return f"[[{kind}]]\nname = \"{name}\"\n{line}\n"

    def secret(self, name, text):
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def daemon(self, name, words):
        daemon = Daemon(name, words, self.folder, self.environment)
        self.started.append(daemon)
        daemon.start()
        return daemon

    def logs(self):
        return "".join(f"--- {one.name}\n" + "\n".join(one.said().splitlines()[-15:]) + "\n" for one in self.started)

    def admin(self, *words):
        return subprocess.run([self.programs / "pool-admin", "--scheduler", self.address, "--token-file", self.folder / "operator.token",
                               *words], capture_output=True, text=True, timeout=60)

    def ask(self, *words):
        """Returns the JSON answer of pool-admin; None if it failed."""
        answer = self.admin("--json", *words)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def leases(self):
        """Returns the leases that have not ended; None if the scheduler does not answer."""
        return self.ask("leases")

    def is_idle(self):
        return self.leases() == [] and self.ask("queue") == []
