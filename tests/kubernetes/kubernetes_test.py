"""Runs gpupool-kubernetes with a kubelet and an API server that the test plays, on a pool of softgpu.

    kubernetes_test.py BUILD [unittest's arguments]

Exits with 77 without root or the examples.
"""
import contextlib
import os
import pathlib
import stat
import sys
import tempfile

from plugin import DRIVER, GPUS, NODE, PluginTest, World, eventually
from kubelet import Container, DevicePluginKubelet
import cases


class Slices(PluginTest):
    def test_the_pool_is_one_shared_device_of_all_nodes(self):
        [piece] = self.api.all("ResourceSlice")
        self.assertTrue(piece["spec"]["allNodes"])
        self.assertNotIn("nodeName", piece["spec"])
        [device] = self.devices()
        self.assertTrue(device["allowMultipleAllocations"])
        self.assertEqual(device["capacity"]["compute"]["value"], str(100 * GPUS))
        self.assertEqual(device["capacity"]["memory"]["value"], str(GPUS << 30))
        self.assertIn("string", device["attributes"]["model"])

    def test_a_drained_node_takes_its_devices_away_and_they_come_back(self):
        first = self.api.all("ResourceSlice")[0]["spec"]["pool"]["generation"]
        self.addCleanup(self.pool.admin, "undrain", "gpus")
        self.pool.admin("drain", "gpus")
        eventually(lambda: not self.devices(), self.state)
        self.pool.admin("undrain", "gpus")
        eventually(self.devices, self.state)
        self.assertGreater(self.api.all("ResourceSlice")[0]["spec"]["pool"]["generation"], first)

    def test_a_restarted_controller_leaves_equal_slices_as_they_are(self):
        before = self.api.all("ResourceSlice")
        self.controller.kill()
        self.controller.start()
        refused = self.claim(count=GPUS + 1, allocated=False)  # shows that it has done a step
        self.await_event(refused, "Impossible")
        self.assertEqual(self.api.all("ResourceSlice"), before)


class WithoutConsumableCapacity(PluginTest):
    consumable_capacity = False

    def test_each_gpu_is_a_device_and_terms_say_the_share(self):
        eventually(lambda: len(self.devices()) == GPUS, self.state)
        self.register()
        claim = self.claim(compute="", memory="", terms="compute=25&memory=64MiB")
        self.prepared(claim)
        [share] = self.lease_of(claim)["parts"][0]["shares"]
        self.assertEqual((share["compute_milli"], share["memory_bytes"]), (250, 64 << 20))
        self.unprepared(claim)
        self.await_idle()


class Claims(PluginTest):
    def test_the_kubelet_finds_the_driver(self):
        info = self.register()
        self.assertEqual((info.type, info.name, list(info.supported_versions)), ("DRAPlugin", DRIVER, ["v1.DRAPlugin"]))
        self.assertTrue(stat.S_ISSOCK(os.stat(info.endpoint).st_mode))

    def test_a_claim_becomes_a_lease_with_its_share_and_a_program_uses_it(self):
        self.register()
        claim = self.claim(compute="50", memory="256Mi", terms="mode=hard")
        answer = self.prepared(claim)
        self.assertEqual([(list(one.request_names), one.pool_name, one.device_name) for one in answer.devices],
                         [(["gpu"], "gpupool", self.devices()[0]["name"])])
        lease = self.lease_of(claim)
        self.assertEqual((lease["tenant"], lease["mode"], lease["host"]), ("research", "hard", NODE))
        self.assertIn("namespace=research", lease["labels"])
        [share] = lease["parts"][0]["shares"]
        self.assertEqual((share["compute_milli"], share["memory_bytes"]), (500, 256 << 20))
        container = self.container(answer)
        self.assertNotIn(self.world.token("research"), self.specification.read_text())
        status, out = container.run(self.world.build / "examples/vector_add")
        self.assertEqual(status, 0, out)
        self.assertIn("PASSED", out)
        # Users of containers differ: all can read the lease's file, which nobody on the host reaches but root.
        folder = pathlib.Path(container.mounts["/run/gpupool/lease"])
        self.assertEqual([stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "servers")], [0o755, 0o644])
        self.assertEqual(stat.S_IMODE((self.folder / "state").stat().st_mode), 0o700)
        self.unprepared(claim)
        self.await_idle()

    def test_calls_can_be_repeated(self):
        self.register()
        claim = self.claim()
        first, again = self.prepared(claim), self.prepared(claim)
        self.assertEqual(first, again)
        self.assertEqual(len(self.pool.leases()), 1)
        self.unprepared(claim)
        self.unprepared(claim)
        self.await_idle()

    def test_several_devices_are_one_lease_of_as_many_gpus(self):
        self.register()
        claim = self.claim(count=2, compute="30")
        answer = self.prepared(claim)
        self.assertEqual(len(answer.devices), 2)
        shares = [share for part in self.lease_of(claim)["parts"] for share in part["shares"]]
        self.assertEqual([share["compute_milli"] for share in shares], [300, 300])
        self.unprepared(claim)
        self.await_idle()

    def test_the_secret_of_a_namespace_decides_the_tenant(self):
        self.register()
        claims = [self.claim(space) for space in ("research", "teaching")]
        answers = self.kubelet.prepare(*claims)
        self.assertEqual([answers[claim["metadata"]["uid"]].error for claim in claims], ["", ""])
        self.assertEqual([self.lease_of(claim)["tenant"] for claim in claims], ["research", "teaching"])
        for claim in claims:
            self.unprepared(claim)
        self.await_idle()

    def test_pods_that_share_a_claim_on_two_nodes_are_told_why_not(self):
        self.register()
        claim = self.claim(node="node-2")
        claim["status"]["reservedFor"].append(self.consumer("research", "second", NODE))
        self.assertRegex(self.refused(claim), "uses the claim on node node-2: .*ResourceClaimTemplate")
        self.assertIn("node-2", self.await_event(claim, "Refused"))
        self.await_idle()


class Waits(PluginTest):
    def test_a_claim_waits_with_events_and_keeps_its_place(self):
        self.register()
        first = self.claim(count=GPUS, compute="100", memory="")
        self.prepared(first)
        second = self.claim(compute="60")
        self.assertIn("waiting for 1 GPU: position 1 of 1 in the queue", self.refused(second))
        self.assertIn("position 1 of 1", self.await_event(second, "Waiting"))
        [before] = self.pool.ask("queue")
        self.refused(second)
        [after] = self.pool.ask("queue")
        self.assertEqual(before["since_ms"], after["since_ms"])
        self.unprepared(first)
        self.prepared(second)
        self.await_event(second, "Granted")
        self.unprepared(second)
        self.await_idle()

    def test_a_pod_that_is_deleted_while_it_waits_leaves_the_queue(self):
        self.register()
        first, second = self.claim(count=GPUS, compute="100", memory=""), self.claim()
        self.prepared(first)
        self.refused(second)
        self.unprepared(second)
        eventually(lambda: self.pool.ask("queue") == [], self.state)
        self.unprepared(first)
        self.await_idle()

    def test_an_impossible_claim_is_told_before_and_when_it_is_prepared(self):
        self.register()
        claim = self.claim(count=GPUS + 1, allocated=False)
        self.assertRegex(self.await_event(claim, "Impossible"), f"cannot place .* of each of {GPUS + 1} GPUs .*: at most {GPUS}")
        claim = self.claim(count=GPUS + 1)
        self.assertRegex(self.refused(claim), f"at most {GPUS}")
        self.assertRegex(self.await_event(claim, "Refused"), f"at most {GPUS}")
        self.await_idle()

    def test_a_wrong_token_is_one_clear_line(self):
        self.register()
        self.api.put_secret("research", self.world.token("removed"))
        error = self.refused(self.claim())
        self.assertIn("token", error)
        self.assertNotIn("\n", error)
        self.api.delete("Secret", "research", "gpupool-token")
        self.assertIn("token", self.refused(self.claim()))
        self.api.put("Secret", "research", "gpupool-token", {"data": {"key": "eA=="}})
        self.assertEqual(self.refused(self.claim()), "the secret research/gpupool-token has no token in its key 'token'")
        self.await_idle()


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

    def restart_node(self):
        self.node.kill()
        self.node.start()

    def test_a_killed_plugin_resumes_its_leases_while_programs_run(self):
        claim = self.claim()
        program = self.started_program(claim)
        before = self.lease_of(claim)
        self.restart_node()
        eventually(lambda: self.lease_of(claim)["held"] and "claim_adopted" in self.node.said(), self.state)
        self.assertEqual(self.lease_of(claim)["id"], before["id"])
        self.finish(program)
        eventually(self.register, self.state)
        self.unprepared(claim)
        self.await_idle()

    def test_a_stopped_plugin_keeps_its_leases_for_the_next_one(self):
        claim = self.claim()
        self.prepared(claim)
        before = self.lease_of(claim)
        self.node.stop()
        self.assertEqual(self.node.process.returncode, 0)
        self.node.start()
        eventually(lambda: self.register() and self.lease_of(claim)["held"], self.state)
        self.assertEqual(self.lease_of(claim)["id"], before["id"])
        self.unprepared(claim)
        self.await_idle()

    def test_a_plugin_resumes_without_the_api_server_and_the_specification(self):
        claim = self.claim()
        self.prepared(claim)
        before = self.lease_of(claim)
        self.node.kill()
        self.specification.unlink()  # /var/run is empty after a start of the machine
        self.api.stop()
        self.node.start()
        eventually(lambda: self.specification.exists() and self.lease_of(claim)["held"], self.state)
        self.assertEqual(self.lease_of(claim)["id"], before["id"])
        self.register()
        self.unprepared(claim)
        self.await_idle()
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
        claim = self.claim()
        self.prepared(claim)
        before = self.lease_of(claim)
        self.node.kill()
        eventually(lambda: self.lease_of(claim) is None, self.state)
        self.node.start()
        eventually(lambda: self.lease_of(claim), self.state)
        self.assertNotEqual(self.lease_of(claim)["id"], before["id"])
        self.register()
        container = self.container(self.prepared(claim))
        self.assertIn("PASSED", container.run(self.world.build / "examples/vector_add")[1])
        self.unprepared(claim)
        self.await_idle()

    def test_an_evicted_lease_is_reported_and_requested_again(self):
        claim = self.claim()
        self.prepared(claim)
        before = self.lease_of(claim)
        evicted = self.pool.admin("evict", before["id"], "--reason", "a test", "--grace", "0")
        self.assertEqual(evicted.returncode, 0, evicted.stderr)
        self.assertIn("ended", self.await_event(claim, "LeaseLost"))
        lease = eventually(lambda: self.lease_of(claim), self.state)
        self.assertNotEqual(lease["id"], before["id"])
        self.unprepared(claim)
        self.await_idle()

    def test_a_scheduler_that_is_killed_loses_no_lease(self):
        claim = self.claim()
        program = self.started_program(claim)
        before = self.lease_of(claim)
        self.pool.scheduler.kill()
        other = self.claim()
        self.refused(other)
        self.pool.scheduler.start()
        eventually(lambda: (self.lease_of(claim) or {}).get("held"), self.state)
        self.assertEqual(self.lease_of(claim)["id"], before["id"])
        self.finish(program)
        self.prepared(other)
        for one in (claim, other):
            self.unprepared(one)
        self.await_idle()

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

    def test_a_socket_that_was_removed_comes_back(self):
        for socket in (self.kubelet.folder / "plugins_registry").iterdir():
            socket.unlink()
        self.register()


class DevicePlugins(PluginTest):
    node_options = ("--resource", f"{DRIVER}/gpu", "--resource", f"{DRIVER}/quarter:compute=25&memory=64MiB", "--units", "5")

    def setUp(self):
        if not self.world.is_bundle:
            self.skipTest("patchelf is not installed: pool-lease would not run in containers")
        token = self.world.folder / "pool/research.token"
        self.node_options = (*type(self).node_options, "--token-file", token)
        super().setUp()

    def test_containers_get_their_share_and_a_kubelet_that_restarts_finds_the_plugin(self):
        for _ in range(2):  # the second kubelet has removed the sockets
            with DevicePluginKubelet(self.kubelet) as kubelet:
                eventually(lambda: len(kubelet.resources()) == 2, self.state)
                request = kubelet.resources()[f"{DRIVER}/quarter"]
                self.assertEqual(request.version, "v1beta1")
                units = kubelet.list(request)
                self.assertEqual([unit.health for unit in units], ["Healthy"] * 5)
                answer = kubelet.allocate(request, [unit.ID for unit in units[:2]])
                container = Container.of_answer(answer)
                self.assertIn("gpus=2&compute=25&memory=64MiB", container.variables["GPUPOOL"])
                status, out = container.run(self.world.build / "examples/vector_add")
                self.assertEqual(status, 0, out)
                self.assertIn("PASSED", out)
        eventually(self.pool.is_idle, self.state)


def setUpModule():
    stack = contextlib.ExitStack()
    cases.unittest.addModuleCleanup(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupool-kubernetes-"))
    PluginTest.world = World(BUILD, pathlib.Path(folder), stack)


def why_not(build):
    """Returns why the tests cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root: lease files of containers belong to root"
    if not (build / "examples/vector_add").exists():
        return "the examples were not built (nvcc was missing)"
    return ""


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if reason := why_not(BUILD):
        print(f"SKIPPED: kubernetes: {reason}")
        sys.exit(77)
    cases.main()
