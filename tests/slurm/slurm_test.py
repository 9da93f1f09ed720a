"""Runs jobs with --gpupool under Slurm's daemons, on a pool of softgpu.

    slurm_test.py BUILD [unittest's arguments]

Exits with 77 without root, or if Slurm's programs, the plugin or the examples are missing.
"""
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import cases  # noqa: E402
from cluster import LICENSES, eventually, missing_programs, processes  # noqa: E402
from gpu_pool import GPUS  # noqa: E402
from world import SlurmTest, World  # noqa: E402

# A program that runs until its file exists: the job's number, or the argument.
UNTIL_TOLD = 'while [ ! -e "go-${1:-$SLURM_JOB_ID}" ]; do sleep 0.1; done'


class Runs(SlurmTest):
    def test_a_task_of_a_user_gets_its_gpu_and_gives_it_back(self):
        job = self.cluster.as_user("srun", "--gpupool=gpus=1,memory=256M,compute=50", "bash", "-c",
                                   f"{self.world.gpupool}/examples/vector_add && echo $SLURM_JOB_ID > started && {UNTIL_TOLD}")
        number = eventually(lambda: (self.world.home / "started").exists() and (self.world.home / "started").read_text().strip(), self.state)
        lease = self.await_lease(number)
        self.assertEqual(lease["program"], f"slurm job {number}")
        self.assertEqual(lease["tenant"], "research")
        self.assertTrue(lease["held"])
        self.assertEqual(len(self.pool.leases()), 1)
        self.tell(number)
        status, out, err = self.finish(job)
        self.assertEqual(status, 0, err)
        self.assertIn("PASSED", out)
        self.await_no_lease(number)

    def test_tasks_on_two_nodes_share_the_lease_of_their_job(self):
        job = self.sbatch(f"srun -l bash -c '{self.world.gpupool}/examples/vector_add && echo $SLURMD_NODENAME $GPUPOOL'; "
                          f"srun -l bash -c '{self.world.gpupool}/examples/vector_add'; {UNTIL_TOLD}",
                          "-N", "2", "-n", "4", "--gpupool=gpus=1,compute=25")
        eventually(lambda: self.printed(job).count("PASSED") == 8, lambda: self.printed(job) + self.state())
        for node in ("n1", "n2"):
            self.assertIn(f"{node} lease:{self.world.jobs}/{job}.0-{node}/servers", self.printed(job))
        self.assertEqual(len(self.pool.leases()), 1)
        self.assertEqual(len(self.leases_of(job)), 1)
        self.tell(job)
        self.await_no_lease(job)

    def test_a_batch_job_and_its_steps_have_the_environment(self):
        job = self.sbatch(f"{self.world.gpupool}/examples/vector_add; srun --overlap -n1 {self.world.gpupool}/examples/vector_add; "
                          f"echo \"$LD_LIBRARY_PATH\"; srun -n1 printenv LD_LIBRARY_PATH; echo done", "--gpupool")
        self.await_printed(job, "done")
        self.assertEqual(self.printed(job).count("PASSED"), 2)
        paths = [line for line in self.printed(job).splitlines() if line.startswith(f"{self.world.gpupool}/lib/client")]
        self.assertEqual(len(paths), 2)
        self.assertEqual(paths[0], paths[1])  # the step's does not have the folder twice

    def test_a_job_without_the_option_is_left_alone(self):
        status, out, err = self.srun("printenv")
        self.assertEqual(status, 0, err)
        self.assertNotIn("GPUPOOL", out)
        self.assertEqual(self.pool.leases(), [])

    def test_elements_of_an_array_have_a_lease_each(self):
        array = self.sbatch(f"{self.world.gpupool}/examples/vector_add; {UNTIL_TOLD.replace('$SLURM_JOB_ID', '$SLURM_ARRAY_JOB_ID')}",
                            "--array=0-1", "--gpupool=compute=50")
        leases = eventually(lambda: len(self.pool.leases() or []) == 2 and self.pool.leases(), self.state)
        self.assertEqual(len({label for lease in leases for label in lease["labels"]}), 2)
        self.tell(array)

    def test_a_job_that_is_submitted_by_a_job_does_not_inherit_the_option(self):
        job = self.sbatch("sbatch --parsable --output=%j.out --wrap 'printenv; echo done' > submitted", "--gpupool")
        submitted = self.world.home / "submitted"
        other = eventually(lambda: submitted.exists() and submitted.read_text().strip(), lambda: self.printed(job) + self.state())
        self.await_printed(other, "done")
        # sbatch passes its environment on, and with it the variable of the job that it runs in.
        self.assertNotIn(f"\nGPUPOOL=lease:{self.world.jobs}/{other}.", self.printed(other))
        self.assertNotIn("gpupool", self.cluster.job_state(other).get("Licenses", ""))

    def test_the_random_bytes_of_a_lease_are_not_in_the_environment_of_its_programs(self):
        job = self.sbatch("printenv; srun printenv; echo done", "--gpupool")
        self.await_printed(job, "done")
        self.assertEqual(self.printed(job).count("\nGPUPOOL=lease:"), 2)
        self.assertNotIn("GPUPOOL_SEED", self.printed(job))

    def test_the_process_that_holds_a_lease_cannot_be_taken_over_by_its_user(self):
        # It is in slurmd's control group, not in the job's. Linux gives the files of such a process in /proc to root.
        job = self.sbatch(UNTIL_TOLD, "--gpupool=compute=50")
        self.await_lease(job)
        holder = [process for process, _, arguments in processes() if f"--hold {self.world.jobs}/{job}." in arguments]
        self.assertEqual(len(holder), 1)
        self.assertEqual(os.stat(f"/proc/{holder[0]}/environ").st_uid, 0)
        self.tell(job)

    def test_no_token_is_seen_by_others(self):
        token = (self.world.home / "token").read_text().strip()
        job = self.sbatch(UNTIL_TOLD, "--gpupool=compute=50")
        self.await_lease(job)
        self.assertNotIn(token, self.cluster.run("scontrol", "-d", "show", "job", job).stdout)
        self.assertFalse([arguments for _, _, arguments in processes() if token in arguments])
        self.tell(job)


class Refusals(SlurmTest):
    def refused(self, *words, **more):
        """Runs a command that is refused at once. Returns what it says, one line."""
        status, out, err = self.finish(self.cluster.as_user(*words, **more))
        self.assertNotEqual(status, 0)
        self.assertEqual(out, "")
        self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(self.cluster.run("squeue", "-h").stdout, "")
        return err

    def test_a_request_that_never_fits_is_refused_when_it_is_submitted(self):
        # A scheduler that has just started waits for further hosts before it refuses.
        check = [self.world.gpupool / "bin/pool-lease", "--check", f"pool://{self.pool.address}?gpus={GPUS + 1}"]
        variables = {"GPUPOOL_TOKEN_FILE": str(self.world.home / "token")}
        eventually(lambda: self.finish(self.cluster.as_user(*check, environment=variables))[0] == 1, self.state)
        option = f"--gpupool=gpus={GPUS + 1},compute=10"
        for command in (("srun", option, "true"), ("sbatch", option, "--wrap", "true"), ("salloc", option, "true")):
            said = self.refused(*command)
            self.assertRegex(said, f"^gpupool: .*cannot place 10 % of each of {GPUS + 1} GPUs: at most {GPUS} GPUs fit")

    def test_a_wrong_token_is_one_clear_line(self):
        said = self.refused("srun", "--gpupool=gpus=1", "true", environment={"GPUPOOL_TOKEN_FILE": "wrong-token"})
        self.assertRegex(said, "^gpupool: .*token")
        said = self.refused("srun", "--gpupool=gpus=1", "true", environment={"GPUPOOL_TOKEN_FILE": "no-file"})
        self.assertEqual(said, "gpupool: GPUPOOL_TOKEN_FILE: 'no-file': No such file or directory\n")
        said = self.refused("srun", "--gpupool=gpus=1", "true", environment={"GPUPOOL_TOKEN": "the-token"})
        self.assertIn("GPUPOOL_TOKEN does not reach the nodes of a job", said)

    def test_a_token_that_was_removed_after_submission_is_a_line_of_the_job(self):
        self.world.give_secret("soon-wrong", (self.world.home / "token").read_text())
        status, out, err = self.finish(self.cluster.as_user(
            "sbatch", "--parsable", "--hold", "--output=%j.out", "--gpupool=gpus=1", "--wrap", "echo ran",
            environment={"GPUPOOL_TOKEN_FILE": "soon-wrong"}))
        self.assertEqual(status, 0, err)
        job = out.strip()
        self.world.give_secret("soon-wrong", (self.world.home / "wrong-token").read_text())
        self.cluster.run("scontrol", "release", job)
        self.await_state(job, "FAILED")
        self.assertRegex(self.printed(job), "^gpupool: .*token.*\n$")

    def test_a_mistake_in_the_option_is_named(self):
        self.assertIn("unknown term 'gpu=1'", self.refused("srun", "--gpupool=gpu=1", "true"))
        self.assertIn("gpus must be a whole number", self.refused("srun", "--gpupool=gpus=many", "true"))
        self.assertIn("memory", self.refused("srun", "--gpupool=memory=8", "true"))

    def test_a_step_cannot_add_the_option_to_its_job(self):
        job = self.sbatch("srun --gpupool=gpus=1 echo ran; echo status $?")
        self.await_printed(job, "status")
        self.assertIn("gpupool: this job has no lease", self.printed(job))
        self.assertNotIn("ran\n", self.printed(job))
        self.assertNotIn("status 0", self.printed(job))


class Ends(SlurmTest):
    """Jobs that end otherwise than by themselves, and daemons that are killed."""

    def start(self, *options, then="echo started; "):
        job = self.sbatch(then + UNTIL_TOLD, *(options or ("--gpupool=gpus=1,compute=50",)))
        self.await_printed(job, "started")
        return job, self.await_lease(job)["id"]

    def await_gone(self, job, node):
        """Waits until slurmctld knows that the job is not on the node any more. It believes a node some seconds after a
        job's start."""
        def is_gone():
            self.cluster.register(node)
            return self.cluster.job_state(job).get("JobState") not in ("RUNNING", "COMPLETING")
        eventually(is_gone, self.state, pause=0.5)

    def test_a_cancelled_job_gives_its_lease_back(self):
        job, _ = self.start("-N", "2", "--gpupool=gpus=2")
        self.cluster.run("scancel", job)
        self.await_no_lease(job)
        self.await_state(job, "CANCELLED")

    def test_a_job_that_waits_for_gpus_says_so_and_can_be_cancelled(self):
        # The licences are less than the pool here, as for a pool that is also used without Slurm.
        holder = self.cluster.as_user(self.world.gpupool / "bin/pool-run", "--server", f"pool://{self.pool.address}", "--token-file",
                                      self.world.home / "token", "--gpus", str(GPUS), "--", "sleep", "1000")
        self.addCleanup(holder.communicate)
        self.addCleanup(holder.kill)
        eventually(self.pool.leases, self.state)
        job = self.sbatch("echo ran", "-N", "2", "--gpupool=gpus=1")
        self.await_printed(job, "gpupool: waiting for 1 GPU: position 1 of 1 in the queue")
        self.cluster.run("scancel", job)
        self.await_state(job, "CANCELLED")
        eventually(lambda: self.pool.ask("queue") == [], self.state)
        self.assertNotIn("ran\n", self.printed(job))

    def test_a_requeued_job_gets_a_new_lease(self):
        job, first = self.start()
        self.cluster.run("scontrol", "requeue", job)
        self.await_no_lease(job)
        # Slurm starts a requeued job after two minutes, and a node runs the prolog again only in another second.
        self.await_state(job, "PENDING")
        self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        second = self.await_lease(job)["id"]
        self.assertNotEqual(first, second)
        self.assertEqual(self.cluster.job_state(job)["Restarts"], "1")
        self.tell(job)
        self.await_no_lease(job)

    def test_a_killed_slurmstepd_ends_the_job_and_its_lease(self):
        job, _ = self.start("--no-requeue", "--gpupool=gpus=1")
        node = self.cluster.job_state(job)["NodeList"]
        for process in self.cluster.steps(job):
            os.kill(process, signal.SIGKILL)
        self.await_gone(job, node)
        self.await_no_lease(job)
        self.tell(job)  # without control groups the program outlives its slurmstepd

    def test_a_job_keeps_its_lease_while_slurmd_is_killed_and_restarted(self):
        job, lease = self.start(then=f"echo started; while [ ! -e go-on ]; do sleep 0.1; done; {self.world.gpupool}/examples/vector_add; ")
        name = self.cluster.job_state(job)["NodeList"]
        self.cluster.nodes[name].kill()
        self.assertEqual([one["id"] for one in self.leases_of(job)], [lease])
        self.cluster.start_node(name)
        self.tell("on")
        self.await_printed(job, "PASSED")
        self.assertEqual([one["id"] for one in self.leases_of(job)], [lease])
        self.tell(job)
        self.await_no_lease(job)
        self.await_state(job, "COMPLETED")

    def test_a_job_that_ends_while_slurmd_is_down_gives_its_lease_back_when_it_is_up(self):
        job, _ = self.start("--no-requeue", "--gpupool=gpus=1")
        name = self.cluster.job_state(job)["NodeList"]
        node = self.cluster.nodes[name]
        node.kill()
        # slurmctld gives the node up, and forgets that the job was there.
        self.cluster.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")
        eventually(lambda: self.cluster.job_state(job).get("JobState") not in ("RUNNING", "COMPLETING"), self.state)
        for process in self.cluster.steps(job):
            os.kill(process, signal.SIGKILL)
        self.cluster.kill_processes(f"SLURM_JOB_ID={job}")
        self.assertTrue(self.leases_of(job))
        self.cluster.start_node(name)
        self.await_no_lease(job)
        self.cluster.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def test_only_leases_of_jobs_that_are_gone_are_stale(self):
        job, lease = self.start()
        node = self.cluster.job_state(job)["NodeList"]
        stale = self.world.jobs / f"4000000.0-{node}"
        stale.mkdir(mode=0o700)
        (stale / "servers").touch()
        self.cluster.run("sh", self.world.gpupool / "lib/slurm/end-stale-leases.sh", self.world.jobs)
        self.assertEqual(os.listdir(self.world.jobs), [f"{job}.0-{node}"])
        self.assertEqual([one["id"] for one in self.leases_of(job)], [lease])
        self.tell(job)

    def test_a_node_that_dies_loses_its_lease_after_the_hold_time(self):
        job, _ = self.start("--no-requeue", "--gpupool=gpus=1")
        name = self.cluster.job_state(job)["NodeList"]
        node = self.cluster.nodes[name]
        node.kill()
        for process, _, arguments in list(processes()):
            if f"--hold {self.world.jobs}/{job}." in arguments:
                os.kill(process, signal.SIGKILL)
        for process in self.cluster.steps(job):
            os.kill(process, signal.SIGKILL)
        self.cluster.kill_processes(f"SLURM_JOB_ID={job}")
        self.await_no_lease(job)
        self.cluster.start_node(name)  # the next boot; a real node's folder is empty then
        self.await_gone(job, name)

    def test_slurmctld_may_restart_while_a_job_runs(self):
        job, lease = self.start()
        self.await_stored(job)
        self.cluster.slurmctld.kill()
        self.cluster.slurmctld.start()
        eventually(lambda: self.cluster.job_state(job).get("JobState") == "RUNNING", self.state)
        self.assertEqual([one["id"] for one in self.leases_of(job)], [lease])
        self.tell(job)
        self.await_no_lease(job)

    def test_the_pools_scheduler_may_restart_while_a_job_runs_and_while_it_starts(self):
        job, lease = self.start("-N", "2", "--gpupool=gpus=1,compute=50",
                                then=f"echo started; while [ ! -e go-2 ]; do sleep 0.1; done; srun {self.world.gpupool}/examples/vector_add; ")
        self.pool.scheduler.kill()
        self.tell("2")
        eventually(lambda: self.printed(job).count("PASSED") == 2, lambda: self.printed(job) + self.state())
        later = self.sbatch(f"{self.world.gpupool}/examples/vector_add", "--gpupool=gpus=1,compute=50")
        self.pool.scheduler.start()
        self.await_printed(later, "PASSED")
        eventually(lambda: [one["id"] for one in self.leases_of(job) if one["held"]] == [lease], self.state)
        self.tell(job)
        self.await_no_lease(job)


class Accounting(SlurmTest):
    def test_slurm_queues_jobs_by_licences_and_accounts_for_them(self):
        first = self.sbatch(UNTIL_TOLD, f"--gpupool=gpus={LICENSES // 100}")
        self.await_lease(first)
        second = self.sbatch("echo ran", "--gpupool=gpus=1,compute=12.5")
        eventually(lambda: "(Licenses)" in self.cluster.run("squeue", "-h", "-j", second, "-o", "%r (%r)").stdout, self.state)
        self.assertIn("Used=400", self.cluster.run("scontrol", "show", "lic", "gpupool").stdout)
        self.assertEqual(self.pool.ask("queue"), [])
        self.tell(first)
        self.await_printed(second, "ran")
        self.assertIn("license/gpupool=400", self.accounted(first, "COMPLETED"))
        self.assertIn("license/gpupool=13", self.accounted(second, "COMPLETED"))

    def test_more_than_all_licences_are_refused(self):
        status, _, err = self.srun("--gpupool=gpus=1,compute=100", f"--licenses=gpupool:{LICENSES}", "true")
        self.assertNotEqual(status, 0)
        self.assertIn("Invalid license specification", err)


def setUpModule():
    stack = contextlib.ExitStack()
    unittest.addModuleCleanup(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupool-slurm-"))
    SlurmTest.world = World(BUILD, pathlib.Path(folder), stack)


def why_not(build):
    """Returns why the tests cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root: slurmd starts programs as other users"
    if not (build / "lib/slurm/spank_gpupool.so").exists():
        return "the plugin was not built (libslurm-dev was missing)"
    if not (build / "examples/vector_add").exists():
        return "the examples were not built (nvcc was missing)"
    missing = missing_programs()
    return f"not installed: {', '.join(missing)}" if missing else ""


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if reason := why_not(BUILD):
        print(f"SKIPPED: slurm: {reason}")
        sys.exit(77)
    cases.main()
