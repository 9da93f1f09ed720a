"""Tests of kubelets, plugins, API servers and schedulers that end, restart and forget."""
import pathlib
import sys

from plugin import GPUS, PluginTest, eventually


class Restarts(PluginTest):
    def setUp(self):
        super().setUp()
        self.register()

    def started_program(self, claim):
        """Starts a program that uses its GPU until it is told to end."""
        container = self.container(self.prepared(claim))
        code = ("import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); assert cuda.cuInit(0) == 0; context = ctypes.c_void_p();"
                "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0; print('ready', flush=True); input();"
                "assert cuda.cuCtxPushCurrent_v2(context) == 0; assert cuda.cuCtxSynchronize() == 0; print('done')")
        process = container.start(sys.executable, "-c", code)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def finish(self, process):
        out, _ = process.communicate("\n", timeout=60)
        self.assertEqual((process.returncode, out), (0, "done\n"))

    def test_a_killed_plugin_resumes_its_leases_while_programs_run(self):
        claim, before = self.held()
        program = self.started_program(claim)
        self.restart_node()
        eventually(lambda: "claim_adopted" in self.node.said(), self.state)
        self.await_held(claim, before)
        self.finish(program)
        self.give_back(claim)

    def test_a_stopped_plugin_keeps_its_leases_for_the_next_one(self):
        claim, before = self.held()
        self.node.stop()
        self.assertEqual(self.node.process.returncode, 0)
        self.node.start()
        self.register()
        self.await_held(claim, before)
        self.give_back(claim)

    def test_a_plugin_resumes_without_the_api_server_and_the_specification(self):
        claim, before = self.held()
        self.node.kill()
        self.specification.unlink()  # /var/run is empty after a start of the machine
        self.api.stop()
        self.node.start()
        eventually(self.specification.exists, self.state)
        self.await_held(claim, before)
        self.give_back(claim)
        self.api.start()

    def test_a_plugin_that_is_killed_while_a_claim_waits_leaks_nothing(self):
        first, second = self.claim(count=GPUS, compute="100", memory=""), self.claim()
        self.prepared(first)
        self.refused(second)
        self.restart_node()
        eventually(lambda: len(self.pool.ask("queue") or []) == 1 and self.lease_of(first)["held"], self.state)
        self.register()
        self.unprepared(first)
        self.prepared(second)
        self.unprepared(second)
        self.await_idle()

    def test_a_plugin_that_was_away_for_too_long_gets_another_lease(self):
        self.pool.admin("policy", "set", "hold=1")
        self.addCleanup(self.pool.admin, "policy", "set", "hold=20")
        claim, before = self.held()
        self.node.kill()
        eventually(lambda: self.lease_of(claim) is None, self.state)
        self.node.start()
        eventually(lambda: self.lease_of(claim), self.state)
        self.assertNotEqual(self.lease_of(claim)["id"], before["id"])
        self.register()
        container = self.container(self.prepared(claim))
        self.assertIn("PASSED", container.run(self.world.build / "examples/vector_add")[1])
        self.give_back(claim)

    def test_an_evicted_lease_is_reported_and_requested_again(self):
        claim, before = self.held()
        evicted = self.pool.admin("evict", before["id"], "--reason", "a test", "--grace", "0")
        self.assertEqual(evicted.returncode, 0, evicted.stderr)
        self.assertIn("ended", self.await_event(claim, "LeaseLost"))
        lease = eventually(lambda: self.lease_of(claim), self.state)
        self.assertNotEqual(lease["id"], before["id"])
        self.give_back(claim)

    def test_a_scheduler_that_is_killed_loses_no_lease(self):
        claim, before = self.held()
        program = self.started_program(claim)
        self.pool.scheduler.kill()
        other = self.claim()
        self.refused(other)
        self.pool.scheduler.start()
        self.await_held(claim, before)
        self.finish(program)
        self.prepared(other)
        self.give_back(claim, other)

    def test_without_the_api_server_claims_end_and_new_ones_wait(self):
        first, second = self.claim(), self.claim()
        self.prepared(first)
        self.api.stop()
        self.assertRegex(self.refused(second), "^cannot ask the API server")
        self.unprepared(first)
        eventually(self.pool.is_idle, self.state)
        self.api.start()
        self.prepared(second)
        self.unprepared(second)
        self.await_idle()

    def test_a_claim_that_the_kubelet_forgot_is_given_back(self):
        gone, moved = self.claim(), self.claim()
        for claim in (gone, moved):
            self.prepared(claim)
        self.api.delete("ResourceClaim", "research", gone["metadata"]["name"])
        moved["status"]["reservedFor"] = [self.consumer("research", "elsewhere", "node-2")]
        self.restart_node()
        self.await_idle()

    def test_a_plugin_that_starts_while_no_scheduler_answers_keeps_the_files_of_a_running_pod(self):
        claim, before = self.held()
        program = self.started_program(claim)
        servers = pathlib.Path(self.container(self.prepared(claim)).mounts["/run/gpupool/lease"]) / "servers"
        content = servers.read_text()
        self.node.kill()
        self.pool.scheduler.kill()
        self.node.start()
        self.register()
        # A request without an answer ends, and the next one begins.
        eventually(lambda: "cannot reach any scheduler" in self.refused(claim), self.state)
        self.assertEqual(servers.read_text(), content)
        self.assertTrue(self.specification.exists())
        self.pool.scheduler.start()
        self.await_held(claim, before)  # which may renew the token in the file
        self.finish(program)
        self.give_back(claim)

    def await_looks(self, claim, count):
        """Waits until the plugin has looked at the claim so often again."""
        path = f"/resourceclaims/{claim['metadata']['name']}"
        before = self.api.count("GET", path)
        eventually(lambda: self.api.count("GET", path) >= before + count, self.state)

    def test_an_api_server_that_does_not_know_claims_takes_no_lease(self):
        claim, before = self.held()
        self.api.has_resource_api = False
        self.await_looks(claim, 4)
        self.restart_node()
        self.await_looks(claim, 4)
        self.await_held(claim, before)
        self.api.has_resource_api = True
        self.give_back(claim)

    def test_a_claim_that_is_missing_once_keeps_its_lease(self):
        claim, before = self.held()
        self.api.miss("ResourceClaim", "research", claim["metadata"]["name"], 1)
        self.await_looks(claim, 4)
        self.await_held(claim, before)
        self.give_back(claim)

    def test_a_socket_that_was_removed_comes_back(self):
        for socket in (self.kubelet.folder / "plugins_registry").iterdir():
            socket.unlink()
        self.register()
