"""Tests of the device plugin."""
import contextlib
import os

import grpc

from kubelet import Container, DevicePluginKubelet
from plugin import DRIVER, PluginTest, eventually


class Streams(PluginTest):
    node_options = ("--resource", f"{DRIVER}/gpu", "--units", "2")

    def threads(self):
        return len(os.listdir(f"/proc/{self.node.process.pid}/task"))

    def test_a_kubelet_that_watches_holds_no_thread(self):
        with DevicePluginKubelet(self.kubelet) as kubelet, contextlib.ExitStack() as stack:
            eventually(kubelet.resources, self.state)
            request = kubelet.resources()[f"{DRIVER}/gpu"]
            kubelet.list(request)
            before = self.threads()
            streams = [stack.enter_context(kubelet.watch(request)) for _ in range(64)]
            for stream in streams:
                self.assertEqual([device.ID for device in next(stream).devices], ["unit-0", "unit-1"])
            self.assertLess(self.threads() - before, 32)
            self.assertTrue(all(stream.is_active() for stream in streams))
            self.node.stop()  # ends them
            self.assertEqual(self.node.process.returncode, 0)
            for stream in streams:
                with self.assertRaises(grpc.RpcError):
                    next(stream)


class DevicePlugins(PluginTest):
    node_options = ("--resource", f"{DRIVER}/gpu", "--resource", f"{DRIVER}/quarter:compute=25&memory=64MiB", "--units", "5")

    def setUp(self):
        if not self.world.is_bundle:
            self.skipTest("patchelf is not installed: pool-lease would not run in containers")
        tokens = self.world.folder / "pool"
        self.node_options = (*type(self).node_options, "--device-plugin-token-file", tokens / "research.token",
                             "--token-file", tokens / "teaching.token")
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
                self.assertEqual(container.variables["GPUPOOL_TOKEN"], self.world.token("research"))
                self.assertIn("gpus=2&compute=25&memory=64MiB", container.variables["GPUPOOL"])
                status, out = container.run(self.world.build / "examples/vector_add")
                self.assertEqual(status, 0, out)
                self.assertIn("PASSED", out)
        eventually(self.pool.is_idle, self.state)
