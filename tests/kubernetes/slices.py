"""Tests of the controller: the ResourceSlices of the pool, and the check of claims."""
from plugin import GPUS, PluginTest, eventually


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


    def test_a_scheduler_that_does_not_answer_is_asked_for_one_claim_only(self):
        def restart():
            self.pool.scheduler.start()
            eventually(lambda: any(node["condition"] == "open" for node in self.pool.ask("nodes") or []), self.state)
        self.addCleanup(restart)
        self.pool.scheduler.kill()
        for _ in range(12):
            self.claim(allocated=False)
        # Each question fails after some seconds; the API server has two claims in a page.
        lists = self.api.count("GET", "/resourceclaims")
        eventually(lambda: self.api.count("GET", "/resourceclaims") >= lists + 3 * 6, self.state, patience=45)


class RareLooks(PluginTest):
    controller_options = ("--claims-interval", "3600")

    def test_claims_are_listed_at_an_interval_of_their_own(self):
        eventually(lambda: self.api.count("GET", "/resourceclaims") == 1, self.state)
        claim = self.claim(count=GPUS + 1, allocated=False)
        self.addCleanup(self.pool.admin, "undrain", "gpus")
        for command, has_devices in (("drain", False), ("undrain", True)):  # the controller goes on
            self.pool.admin(command, "gpus")
            eventually(lambda: bool(self.devices()) == has_devices, self.state)
        self.assertEqual(self.api.count("GET", "/resourceclaims"), 1)
        self.assertEqual(self.api.events(claim), [])


class WithoutConsumableCapacity(PluginTest):
    consumable_capacity = False

    def test_no_other_device_is_ever_written(self):
        eventually(lambda: len(self.devices()) == GPUS, self.state)
        for restarted in (False, True):
            if restarted:
                self.controller.kill()
                self.controller.start()
                refused = self.claim(count=GPUS + 1, allocated=False)  # shows that it has done a step
                self.await_event(refused, "Impossible")
            slices = [one for kind, one in self.api.written if kind == "ResourceSlice"]
            self.assertEqual([len(one["spec"]["devices"]) for one in slices], [GPUS])
        self.assertEqual([one["metadata"]["name"] for one in self.api.all("ResourceSlice")], [slices[0]["metadata"]["name"]])

    def test_each_gpu_is_a_device_and_terms_say_the_share(self):
        eventually(lambda: len(self.devices()) == GPUS, self.state)
        self.register()
        claim = self.claim(compute="", memory="", terms="compute=25&memory=64MiB")
        self.prepared(claim)
        [share] = self.lease_of(claim)["parts"][0]["shares"]
        self.assertEqual((share["compute_milli"], share["memory_bytes"]), (250, 64 << 20))
        self.unprepared(claim)
        self.await_idle()
