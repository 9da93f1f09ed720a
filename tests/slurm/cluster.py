"""Slurm's real daemons on one machine: munged, mariadbd, slurmdbd, slurmctld, and a slurmd for each of two nodes.

All of them run in the foreground as children of this process, with free ports and their files in one folder. Needs root,
because slurmd starts programs as other users. Jobs are submitted as the user nobody.
"""
import contextlib
import ctypes
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import time

PATIENCE = 90
USER = "nobody"
NODES = ("n1", "n2")
LICENSES = 400
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "mariadb", "slurmdbd", "slurmctld", "slurmd", "srun", "sacctmgr")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def missing_programs():
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def eventually(condition, what, patience=PATIENCE, pause=0.05):
    """Returns the condition's first true value. Fails with `what`, a text or a function that returns one. `pause`: seconds
    between two attempts."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {patience} s waiting until {what() if callable(what) else what}")
        time.sleep(pause)


def processes():
    """Yields (process id, parent, arguments) of all processes."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # it has ended
        yield int(entry.name), parent, arguments


def end_with_this_process():
    """In a child: has the kernel kill it when this process ends, however that is."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Daemon:
    """A process in the foreground that logs to a file."""

    def __init__(self, name, words, folder, environment):
        self.name, self.words, self.environment = name, [str(word) for word in words], environment
        self.log = folder / f"{name}.log"
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=end_with_this_process)

    def kill(self):
        """Ends it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Cluster:
    """Starts the daemons for the duration of `with`. `plugstack` is the line of plugstack.conf, `home` the folder in which
    the user's commands run."""

    def __init__(self, folder, plugstack, job_submit, home):
        self.folder, self.home = pathlib.Path(folder), home
        self.environment = {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), "LANG": "C.UTF-8"}
        self.plugstack, self.job_submit = plugstack, job_submit
        self.started = []

    def __enter__(self):
        try:
            self.write_files()
            self.start_munged()
            self.start_accounting()
            self.slurmctld = self.daemon("slurmctld", ["slurmctld", "-D"])
            self.nodes = {name: self.daemon(name, ["slurmd", "-D", "-N", name]) for name in NODES}
            eventually(self.is_idle, lambda: f"all nodes are idle: {self.sinfo()}\n{self.logs()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.started):
            daemon.stop()
        self.kill_processes()  # steps that outlived their slurmd, and programs that outlived their step

    def kill_processes(self, *variables):
        """Kills the processes that Slurm has started, or those with these further environment variables."""
        for process, _, _ in list(processes()):
            if self.is_ours(process, *variables):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def is_ours(self, process, *variables):
        """True for a process of this cluster's Slurm with these environment variables, NAME=VALUE."""
        try:
            present = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return all(one.encode() in present for one in (f"SLURM_CONF={self.environment['SLURM_CONF']}", *variables))

    def daemon(self, name, words):
        daemon = Daemon(name, words, self.folder, self.environment)
        self.started.append(daemon)
        daemon.start()
        return daemon

    def logs(self):
        """Returns the last lines of the daemons of Slurm."""
        return "".join(f"--- {one.name}\n" + "\n".join(one.said().splitlines()[-15:]) + "\n" for one in self.started if one.name[0] in "sn")

    def write_files(self):
        host = socket.gethostname().split(".")[0]
        controller, database, accounting, *nodes = free_ports(3 + len(NODES))
        self.database_port, self.accounting_port, self.password = database, accounting, secrets.token_hex(16)
        common = f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/munge.sock\nSlurmUser=root\n"
        node_lines = "".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN\n"
                             for name, port in zip(NODES, nodes))
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        (self.folder / "plugstack.conf").write_text(self.plugstack + "\n")
        shutil.copy(self.job_submit, self.folder / "job_submit.lua")
        (self.folder / "slurm.conf").write_text(f"""{common}ClusterName=gpupool
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
BatchStartTimeout=1
MessageTimeout=5
ReturnToService=2
KillWait=2
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
PlugStackConfig={self.folder}/plugstack.conf
PrologFlags=Alloc
JobSubmitPlugins=lua
Licenses=gpupool:{LICENSES}
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting}
AccountingStoragePass={self.folder}/munge.sock
AccountingStorageTRES=license/gpupool
{node_lines}PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=10 State=UP OverSubscribe=NO
""")
        slurmdbd = self.folder / "slurmdbd.conf"
        slurmdbd.touch(mode=0o600)
        slurmdbd.write_text(f"""{common}DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting}
PidFile={self.folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={self.password}
StorageLoc=slurm_accounting
""")

    def start_munged(self):
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.daemon("munged", ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.sock",
                               f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                               f"--seed-file={self.folder}/munged.seed"])
        eventually((self.folder / "munge.sock").exists, "munged listens")

    def start_accounting(self):
        data, sock = self.folder / "database", self.folder / "database.sock"
        self.run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db",
                 "--auth-root-authentication-method=socket")
        self.daemon("mariadbd", ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={sock}",
                                 f"--port={self.database_port}", "--bind-address=127.0.0.1", f"--pid-file={self.folder}/db.pid",
                                 "--innodb-buffer-pool-size=16M", "--innodb-lock-wait-timeout=900",
                                 "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"])
        sql = f"create user slurm@'127.0.0.1' identified by '{self.password}'; grant all on slurm_accounting.* to slurm@'127.0.0.1';"
        eventually(lambda: self.run("mariadb", "--no-defaults", f"--socket={sock}", "-e", sql, check=False).returncode == 0,
                   lambda: "mariadbd answers:\n" + self.logs())
        self.daemon("slurmdbd", ["slurmdbd", "-D"])
        answer = []  # the last
        eventually(lambda: answer.append(self.run("sacctmgr", "-i", "add", "cluster", "gpupool", check=False)) or answer.pop(0).returncode == 0,
                   lambda: "slurmdbd answers:\n" + self.logs())

    def run(self, *words, check=True, **more):
        """Runs a command of Slurm's as root."""
        done = subprocess.run([str(word) for word in words], env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, **more)
        if check and done.returncode:
            raise AssertionError(f"{words} failed: {done.stdout}{done.stderr}")
        return done

    def sinfo(self):
        return self.run("sinfo", "-N", "-h", "-o", "%N %T %E", check=False).stdout

    def is_idle(self):
        states = [line.split()[1] for line in self.sinfo().splitlines()]
        return states == ["idle"] * len(NODES)

    def as_user(self, *words, environment=None):
        """Starts a command as the user. Its stdout and stderr are pipes."""
        return subprocess.Popen([str(word) for word in words], env={**self.environment, **(environment or {})},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                user=USER, group="nogroup", extra_groups=[], cwd=self.home)

    def start_node(self, node):
        """Starts a slurmd that was killed, and waits until it serves."""
        before = self.nodes[node].said().count("slurmd started on")
        self.nodes[node].start()
        eventually(lambda: self.nodes[node].said().count("slurmd started on") > before, self.nodes[node].said)

    def register(self, node):
        """Has the node tell slurmctld which jobs it has. It does so every few minutes by itself."""
        self.nodes[node].process.send_signal(signal.SIGHUP)

    def job_state(self, job):
        words = self.run("scontrol", "-o", "show", "job", job, check=False).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def steps(self, job):
        """Returns the process ids of the job's slurmstepd on this machine."""
        return [process for process, _, arguments in processes()
                if arguments.startswith(f"slurmstepd: [{job}.") and self.is_ours(process)]
