#!/usr/bin/env python3
"""containers_test.py BUILD_FOLDER [unittest's options]: builds the images of packaging/containers/ and runs them with podman;
runs the commands of docs/containers.md and README.md.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import base_image
import engine
import page
from engine import BASE, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = "localhost/gpupool-example"
POOLD = "localhost/gpupool-poold"
SCHEDULER = "localhost/gpupool-scheduler"
SOCKETS = "/run/gpupool"
SERVER = f"shm://{SOCKETS}/poold.sock"
TREE_FILES = ["bin/pool-cdi", "bin/pool-lease", "bin/pool-smi", "lib/client/libcuda.so.1", "lib/client/libnvidia-ml.so.1"]
PATH = os.environ["PATH"]


def shell(commands, **options):
    return run("bash", "-euo", "pipefail", "-c", commands, **options)


def podman(*words, **options):
    return run("podman", *words, **options)


class Containers(unittest.TestCase):
    """Fails where this machine lacks something (setUpModule), so that the reason is shown once."""

    def tearDown(self):
        podman("rm", "--force", "--all", "--time", "0")
        run("rm", "-rf", "/etc/cdi/gpupool.json", SOCKETS)

    def start_poold(self, *options, words=()):
        """Starts a poold whose socket is in SOCKETS, and waits until it answers."""
        os.makedirs(SOCKETS, exist_ok=True)
        podman("run", "-d", "--name", "poold", "--network", "none", "-v", f"{SOCKETS}:{SOCKETS}", *options, POOLD, *words)
        self.await_health("poold")

    def await_health(self, name):
        def healthy():
            state = podman("inspect", "--format", "{{.State.Status}}", name).stdout.strip()
            self.assertEqual(state, "running", podman("logs", name).stdout)
            return podman("healthcheck", "run", name, check=False).returncode == 0

        engine.await_true(healthy, f"{name} is healthy")

    def cdi(self, *options, **more):
        return run("pool-cdi", *options, **more)

    def run_device(self, *words, device="all", check=True):
        """Runs a container that has a device and no network."""
        return podman("run", "--rm", "--network", "none", "--pull=never", "--device", f"gpupool.dev/gpu={device}", *words,
                      check=check)

    def needs_network(self):
        if fault := SHARED["network_fault"]:
            self.skipTest(f"containers cannot have a network here: {fault}")


class Images(Containers):
    def inspect(self, image):
        return json.loads(podman("image", "inspect", image).stdout)[0]

    def test_images_start_programs_directly_and_say_what_they_are(self):
        programs = {POOLD: ("Entrypoint", "/usr/bin/poold", ""), SCHEDULER: ("Entrypoint", "/usr/bin/pool-scheduler", "65532:65532"),
                    EXAMPLE: ("Cmd", "/usr/bin/vector_add", "65532:65532")}
        for image, (key, program, user) in programs.items():
            about = self.inspect(image)
            config = about["Config"]
            # Without a shell between, signals reach the program.
            self.assertEqual(config[key][0], program)
            self.assertEqual(config.get("User", ""), user)
            self.assertRegex(config["Labels"]["org.opencontainers.image.version"], r"^\d+\.\d+\.\d+$")
            self.assertIn(f"{image}:{config['Labels']['org.opencontainers.image.version']}", about["RepoTags"])
            self.assertEqual("Healthcheck" in about or "Healthcheck" in config, image != EXAMPLE)

    def test_poold_answers_its_health_check_and_ends_at_sigterm(self):
        self.start_poold()
        podman("stop", "--time", "30", "poold")
        self.assertEqual(podman("inspect", "--format", "{{.State.ExitCode}}", "poold").stdout.strip(), "0")
        self.assertFalse(os.path.exists(f"{SOCKETS}/poold.sock"))

    def test_poold_needs_only_the_capabilities_that_its_containerfile_names(self):
        self.start_poold("--cap-drop", "all", "--cap-add", "SETUID,SETGID,KILL", "--security-opt", "no-new-privileges")
        self.cdi("--server", SERVER)
        self.assertIn("PASSED", self.run_device(EXAMPLE).stdout)
        log = podman("logs", "poold").stdout
        self.assertNotIn('missing="other user"', log)
        users = {line.split()[0] for line in podman("top", "poold", "user", "comm").stdout.splitlines() if "poold-worker" in line}
        self.assertEqual(users, {"nobody"})

    def test_poold_runs_as_another_user_and_its_workers_as_the_same(self):
        os.makedirs(SOCKETS)
        os.chown(SOCKETS, 65532, 65532)
        self.start_poold("--user", "65532:65532", "--cap-drop", "all")
        self.cdi("--server", SERVER)
        self.assertIn("PASSED", self.run_device(EXAMPLE).stdout)

    def test_an_image_is_not_built_from_an_incomplete_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            failed = run(f"{ROOT}/scripts/make-images.sh", folder, check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("has no bin/poold", failed.stdout)


class Devices(Containers):
    def test_a_device_gives_no_more_than_it_says(self):
        self.start_poold()
        self.cdi("--server", SERVER)
        shown = self.run_device(BASE, "bash", "-c", "ls /dev; echo end; for file in /usr/lib/gpupool/lib/client/libcuda.so.1 "
                                f"{SOCKETS}/poold.sock; do rm -f $file && echo removed $file; done; true")
        without = podman("run", "--rm", "--network", "none", BASE, "ls", "/dev")
        self.assertEqual(shown.stdout.split("end\n")[0], without.stdout)
        self.assertEqual(shown.stdout.count("Read-only file system"), 2, shown.stdout)
        self.assertNotIn("removed", shown.stdout)
        self.assertIn("PASSED", self.run_device("--read-only", EXAMPLE).stdout)

    def test_a_device_replaces_variables_or_leaves_the_librarys_path_alone(self):
        self.start_poold()
        show = "echo $LD_LIBRARY_PATH $GPUPOOL"
        words = ["-e", "LD_LIBRARY_PATH=/opt/a", "-e", "GPUPOOL=tcp://other:1"]
        self.cdi("--server", SERVER)
        self.assertEqual(self.run_device(*words, BASE, "bash", "-c", show).stdout, f"/usr/lib/gpupool/lib/client {SERVER}\n")
        self.cdi("--server", SERVER, "--library-path", "/opt/a")
        self.assertEqual(self.run_device(*words, BASE, "bash", "-c", show).stdout,
                         f"/usr/lib/gpupool/lib/client:/opt/a {SERVER}\n")
        self.cdi("--server", SERVER, "--system-folders")
        self.assertEqual(self.run_device(*words, BASE, "bash", "-c", show).stdout, f"/opt/a {SERVER}\n")
        self.assertIn("PASSED", self.run_device(*words, EXAMPLE).stdout)

    def test_a_container_shows_its_gpus_with_pool_smi(self):
        self.start_poold()
        self.cdi("--server", SERVER)
        self.assertIn("GPU 0: ", self.run_device(BASE, "/usr/lib/gpupool/bin/pool-smi", "-L").stdout)

    def test_an_unknown_device_starts_no_container(self):
        self.cdi("--server", "tcp://10.0.0.1:9700", "--name", "one")
        failed = self.run_device(BASE, "true", device="two", check=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertIn("gpupool.dev/gpu=two", failed.stdout)

    def test_a_token_is_for_the_user_who_can_read_it(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(["podman", "run", "--rm", "--network", "none", POOLD, "--make-token"], capture_output=True,
                                  text=True, check=True).stdout.splitlines()
            token, config = f"{folder}/token", f"{folder}/poold.toml"
            with open(config, "w", encoding="utf-8") as file:
                file.write(f'[[tenant]]\nname = "research"\n{made[-1]}\n')
            with open(token, "w", encoding="utf-8") as file:
                file.write(made[0] + "\n")
            os.chmod(token, 0o600)
            self.start_poold("-v", f"{config}:/etc/gpupool/poold.toml:ro",
                             words=("--config", "/etc/gpupool/poold.toml", "--listen", SERVER))
            self.cdi("--server", SERVER, "--name", "open")
            self.cdi("--server", SERVER, "--token-file", token)
            refused = self.run_device(EXAMPLE, device="open", check=False)
            self.assertIn("authentication required", refused.stdout)
            unreadable = self.run_device(EXAMPLE, check=False)
            self.assertNotEqual(unreadable.returncode, 0)
            self.assertIn("/etc/gpupool/token", unreadable.stdout)
            self.assertIn("PASSED", self.run_device("--user", "0", EXAMPLE).stdout)
            os.chown(token, 65532, 65532)
            self.assertIn("PASSED", self.run_device(EXAMPLE).stdout)

    def test_a_pool_is_refused_with_a_pool_lease_that_needs_the_hosts_libraries(self):
        refused = run(f"{SHARED['build']}/bin/pool-cdi", "--server", "pool://10.0.0.1:9800", check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("make-bundle.sh", refused.stdout)


class Pages(Containers):
    def commands(self, heading):
        """Returns the commands below a heading of docs/containers.md."""
        return page.blocks(f"{ROOT}/docs/containers.md")[f"{heading}: try it"]

    def run_commands(self, commands, folder):
        """Runs commands of a page, of which one starts the example."""
        shown = shell(commands, cwd=folder)
        self.assertEqual(shown.stdout.count("PASSED"), 1, shown.stdout)

    def test_a_socket_between_containers(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_commands(self.commands("A socket between containers"), folder)

    def test_tcp_between_containers(self):
        self.needs_network()
        with tempfile.TemporaryDirectory() as folder:
            self.run_commands(self.commands("TCP between containers"), folder)

    def test_a_pool_gets_the_gpus_of_a_container_that_ended(self):
        self.needs_network()
        start, use = self.commands("A pool of containers").split("podman run --rm", 1)
        use, end = use.split("\n", 1)
        admin = ["podman", "exec", "pool-scheduler", "pool-admin", "--scheduler", "127.0.0.1:9800"]
        with tempfile.TemporaryDirectory() as folder:
            shell(start, cwd=folder)
            self.assertEqual(run(*admin, "--json", "leases").stdout.strip(), "[]")
            run(*admin, "policy", "set", "hold=1")
            self.run_commands("podman run --rm" + use, folder)
            engine.await_true(lambda: run(*admin, "--json", "leases").stdout.strip() == "[]", "the lease is over")
            metrics = "exec 3<>/dev/tcp/127.0.0.1/9801; printf 'GET /metrics HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3; cat <&3"
            counters = podman("exec", "pool-scheduler", "bash", "-c", metrics).stdout
            self.assertIn("\ngpupool_pool_granted_total 1\n", counters)
            # The container's end killed pool-lease before it could return the lease.
            self.assertIn('\ngpupool_pool_ended_total{why="expired"} 1\n', counters)
            shell(end, cwd=folder)

    def test_each_heading_that_invites_to_try_is_tried(self):
        tried = [heading for heading in page.blocks(f"{ROOT}/docs/containers.md") if heading.endswith("try it")]
        self.assertEqual(len(tried), 3)

    def test_readme_shares_a_gpu_between_local_containers(self):
        commands = page.blocks(f"{ROOT}/README.md")["Share one GPU between local containers"]
        for words, real in (("--device nvidia", "--device softgpu"), ("PREFIX", SHARED["tree"]), ("IMAGE PROGRAM", EXAMPLE)):
            self.assertIn(words, commands)
            commands = commands.replace(words, real)
        if SHARED["network_fault"]:
            commands = commands.replace("podman run", "podman run --network none")
        first, rest = commands.split("\n", 1)
        self.assertTrue(first.startswith("poold "), first)
        os.makedirs(SOCKETS)
        with tempfile.TemporaryFile("w+") as log, \
                subprocess.Popen(first.split(), executable=f"{SHARED['build']}/bin/poold", stdout=log, stderr=log) as poold:
            try:
                engine.await_true(lambda: os.path.exists(f"{SOCKETS}/pool.sock") or poold.poll() is not None, "poold listens")
                shown = shell(rest)
            except AssertionError as failure:
                log.seek(0)
                raise AssertionError(f"{failure}\n{log.read()}") from None
            finally:
                poold.terminate()
        self.assertEqual(shown.stdout.count("PASSED"), 2, shown.stdout)


SHARED = {}


class Result(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIPPED: {test.id().split('.')[-1]}: {reason}", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if reason := engine.missing_tool():
        print(f"skipped: {reason}")
        sys.exit(77)
    engine.enter_namespaces()
    build = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        archive, tree = f"{folder}/base.tar", f"{folder}/tree"
        base_image.write_archive(archive)
        try:
            print(f"podman: {engine.start(folder, archive)}", flush=True)
        except engine.Missing as missing:
            print(f"skipped: {missing}")
            sys.exit(77)
        shell(f'source "{ROOT}/scripts/images/tree.sh"; make_tree "{build}" "{tree}" {" ".join(TREE_FILES)}')
        # With this umask, the images' users could not start the programs if the script did not set their modes.
        shell(f'umask 077; "{ROOT}/scripts/make-images.sh" --base {BASE} "{build}"')
        os.environ["PATH"] = f"{tree}/bin:{PATH}"
        SHARED.update(build=build, tree=tree, network_fault=engine.network_fault())
        program = unittest.main(testRunner=unittest.TextTestRunner(verbosity=2, resultclass=Result), exit=False)
        podman("system", "reset", "--force", check=False)
    sys.exit(0 if program.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
