"""Tests of a node's claims: what the kubelet is answered, what containers get, and claims that wait."""
import os
import pathlib
import stat

from plugin import DRIVER, GPUS, NODE, PluginTest, eventually


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

    def test_a_namespace_without_a_role_gets_nothing(self):
        self.register()
        self.api.put_secret("strangers", self.world.token("research"))
        claim = self.claim("strangers")
        self.assertRegex(self.refused(claim), "may not read the secret strangers/gpupool-token, .*make-roles.sh")
        self.assertIn("make-roles.sh", self.await_event(claim, "Refused"))
        self.await_idle()

    def test_pods_that_share_a_claim_on_two_nodes_are_told_why_not(self):
        self.register()
        claim = self.claim(node="node-2")
        claim["status"]["reservedFor"].append(self.consumer("research", "second", NODE))
        self.assertRegex(self.refused(claim), "uses the claim on node node-2: .*ResourceClaimTemplate")
        self.assertIn("node-2", self.await_event(claim, "Refused"))
        self.await_idle()


class DefaultToken(PluginTest):
    def setUp(self):
        self.node_options = ("--token-file", self.world.folder / "pool/teaching.token")
        super().setUp()
        self.register()

    def test_it_is_for_namespaces_without_a_secret(self):
        claim = self.claim("others")
        self.prepared(claim)
        self.assertEqual(self.lease_of(claim)["tenant"], "teaching")
        self.give_back(claim)

    def test_it_is_not_for_namespaces_without_a_role(self):
        claim = self.claim("strangers")
        self.assertRegex(self.refused(claim), "may not read the secret strangers/gpupool-token")
        self.await_idle()

    def test_a_held_lease_does_not_change_to_it(self):
        claim, before = self.held()
        self.assertEqual(before["tenant"], "research")
        self.api.delete("Secret", "research", "gpupool-token")
        self.pool.scheduler.kill()  # each new connection asks for the token again
        self.pool.scheduler.start()
        self.await_held(claim, before)
        self.give_back(claim)


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

    def test_attempts_that_fail_alike_are_one_event_and_another_reason_updates_it(self):
        self.register()
        self.api.put_secret("research", self.world.token("removed"))
        claim = self.claim()

        def refusals():
            return [event for event in self.api.events(claim) if event["reason"] == "Refused"]
        for _ in range(3):
            self.refused(claim)
        [first] = refusals()
        self.assertEqual(first["count"], 1)
        self.restart_node()
        self.register()
        self.refused(claim)
        self.assertEqual([event["metadata"]["name"] for event in refusals()], [first["metadata"]["name"]])
        self.api.put("Secret", "research", "gpupool-token", {"data": {"key": "eA=="}})
        eventually(lambda: self.refused(claim) and "has no token in its key" in refusals()[0]["message"], self.state)
        [last] = refusals()
        self.assertGreater(last["count"], 1)
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
