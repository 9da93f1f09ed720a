"""What the tests of this folder share: a pool, a cluster of Slurm's, and jobs of a user."""
import os
import shutil
import time
import unittest

from cluster import PATIENCE, USER, Cluster, eventually, processes
from gpu_pool import GpuPool, install

HOLD_SECONDS = 3  # policy of the pool: how long a lease outlives its pool-lease


class World:
    """Everything that the tests share."""

    def __init__(self, build, folder, stack):
        folder.chmod(0o755)
        self.home, self.gpupool, self.jobs = folder / "home", folder / "gpupool", folder / "jobs"
        for made, mode in ((self.home, 0o755), (folder / "pool", 0o700), (folder / "slurm", 0o755)):
            made.mkdir()
            made.chmod(mode)
        install(build, self.gpupool)
        self.pool = stack.enter_context(GpuPool(build, folder / "pool"))
        for name, token in (("token", "research"), ("wrong-token", "removed")):
            self.give_secret(name, (folder / "pool" / f"{token}.token").read_text())
        shutil.chown(self.home, USER, "nogroup")
        changed = self.pool.admin("policy", "set", f"hold={HOLD_SECONDS}")
        if changed.returncode:
            raise AssertionError(changed.stderr)
        plugstack = (f"required {self.gpupool}/lib/slurm/spank_gpupool.so server=pool://{self.pool.address} "
                     f"token-file={self.home}/token folder={self.jobs}")
        self.cluster = stack.enter_context(Cluster(folder / "slurm", plugstack, self.gpupool / "lib/slurm/job_submit.lua", self.home))

    def give_secret(self, name, text):
        path = self.home / name
        path.touch(mode=0o600)
        path.write_text(text)
        shutil.chown(path, USER, "nogroup")
        return path


class SlurmTest(unittest.TestCase):
    """A test in the world that setUpModule() made."""
    world = None

    def setUp(self):
        self.pool, self.cluster = self.world.pool, self.world.cluster
        self.addCleanup(self.clean_up)

    def clean_up(self):
        """Ends the jobs of the test. Nothing of them may stay."""
        self.cluster.run("scancel", "--user", USER, check=False)
        eventually(lambda: not self.cluster.run("squeue", "-h").stdout, self.state)
        eventually(self.cluster.is_idle, self.state)
        eventually(self.pool.is_idle, self.state)
        eventually(lambda: not os.path.exists(self.world.jobs) or not os.listdir(self.world.jobs), self.state)
        self.assertEqual([arguments for _, _, arguments in processes() if f"--hold {self.world.jobs}/" in arguments], [])

    def state(self):
        folders = list(os.walk(self.world.jobs))
        outputs = {path.name: path.read_text() for path in self.world.home.glob("*.out")}
        return (f"all is idle: jobs {self.cluster.run('squeue', '-h').stdout}, nodes {self.cluster.sinfo()}, leases {self.pool.leases()}, "
                f"queue {self.pool.ask('queue')}, folders {folders}, outputs {outputs}\n{self.cluster.logs()}{self.pool.logs()}")

    def finish(self, process):
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def srun(self, *words, **more):
        return self.finish(self.cluster.as_user("srun", *words, **more))

    def sbatch(self, script, *options):
        """Submits a batch script and returns the job's number."""
        status, out, err = self.finish(self.cluster.as_user("sbatch", "--parsable", "--output=%j.out", *options, "--wrap", script))
        self.assertEqual(status, 0, err)
        return out.strip()

    def printed(self, job):
        path = self.world.home / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def await_printed(self, job, text):
        eventually(lambda: text in self.printed(job), lambda: f"job {job} prints '{text}': {self.printed(job)}\n{self.state()}")

    def await_stored(self, job):
        """Waits until slurmctld has stored the present state of jobs, which it does within some seconds of a change."""
        path, now = self.cluster.folder / "state/job_state", time.time()
        self.cluster.run("scontrol", "update", f"JobId={job}", "Comment=changed")
        eventually(lambda: path.exists() and path.stat().st_mtime > now, "slurmctld stores its state")

    def tell(self, name):
        (self.world.home / f"go-{name}").touch()

    def leases_of(self, job):
        return [lease for lease in self.pool.leases() or [] if f"job={job}" in lease["labels"] and not lease["ending"]]

    def await_lease(self, job):
        return eventually(lambda: self.leases_of(job), self.state)[0]

    def await_no_lease(self, job):
        eventually(lambda: self.pool.leases() is not None and not self.leases_of(job), self.state)

    def await_state(self, job, state):
        eventually(lambda: self.cluster.job_state(job).get("JobState") == state, self.state)

    def accounted(self, job, state):
        """Returns the resources of a job in the accounting, once it is there in this state."""
        def find():
            rows = self.cluster.run("sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "State,AllocTRES,ReqTRES").stdout.splitlines()
            return [row for row in rows if row.startswith(state)]
        return eventually(find, lambda: f"the accounting knows job {job} as {state}")[0]
