"""What the tests of this folder share: a pool, an API server, a kubelet, and the two processes of gpupool-kubernetes."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import uuid

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "slurm")]
from api_server import ApiServer  # noqa: E402
from chart import manifests, roles, rules_of  # noqa: E402
from cluster import Daemon, eventually  # noqa: E402
from gpu_pool import GPUS, GpuPool  # noqa: E402
from kubelet import Container, Kubelet, load_interfaces  # noqa: E402

DRIVER = "gpupool.dev"
NODE = "node-1"
HOLD_SECONDS = 20  # policy of the pool: longer than a restart of the plugin, also on a busy machine
TENANTS = ("research", "teaching")
SPACES = (*TENANTS, "others")  # namespaces whose Secrets the plugin may read


def install(build, folder):
    """Copies what the image has. Programs bring their libraries if patchelf is there. Returns whether they do."""
    files = ["bin/gpupool-kubernetes", "bin/pool-lease", "bin/pool-smi",
             *(str(path.relative_to(build)) for path in (build / "lib/client").rglob("*") if not path.is_dir())]
    if shutil.which("patchelf"):
        subprocess.run(["bash", "-c", f"source '{ROOT}/scripts/images/tree.sh'; make_tree \"$@\"", "bash", build, folder, *files], check=True)
        return True
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build / name, folder / name, follow_symlinks=False)
    return False


class World:
    """Everything that the tests share."""

    def __init__(self, build, folder, stack):
        self.build, self.folder = build, folder
        self.is_bundle = install(build, folder / "installed")
        (folder / "pool").mkdir(mode=0o700)
        self.pool = stack.enter_context(GpuPool(build, folder / "pool", TENANTS))
        changed = self.pool.admin("policy", "set", f"hold={HOLD_SECONDS}")
        if changed.returncode:
            raise AssertionError(changed.stderr)
        objects = [*manifests(), *roles(*SPACES)]
        self.accounts = {name: rules_of(f"gpupool-{name}", objects) for name in ("node", "controller")}
        self.interfaces = load_interfaces(ROOT / "client/kubernetes", folder / "interfaces")
        # A scheduler that has just started waits for further hosts before it refuses.
        check = [build / "bin/pool-lease", "--check", f"pool://{self.pool.address}?gpus={GPUS + 1}"]
        variables = {**os.environ, "GPUPOOL_TOKEN_FILE": str(folder / "pool/research.token")}
        eventually(lambda: subprocess.run(check, env=variables, capture_output=True).returncode == 1, "the scheduler refuses requests")

    def token(self, name):
        return (self.folder / f"pool/{name}.token").read_text().strip()


class PluginTest(unittest.TestCase):
    """A test in the world that kubernetes_test.py made, with a cluster of its own. The namespaces are named as their tenants."""
    world = None
    consumable_capacity = True
    node_options = ()
    controller_options = ("--claims-interval", "1")

    def setUp(self):
        self.pool = self.world.pool
        self.folder = self.world.folder / self.id().rsplit(".", 1)[1][:40]
        self.folder.mkdir()
        self.api = ApiServer(self.world.accounts, self.consumable_capacity)
        self.enterContext(self.api)
        for tenant in TENANTS:
            self.api.put_secret(tenant, self.world.token(tenant))
        self.kubelet = Kubelet(self.short_folder("kubelet"), self.world.interfaces)
        self.specification = self.folder / "cdi/gpupool.json"
        self.daemons = []
        self.addCleanup(self.clean_up)
        self.start_plugin()

    def short_folder(self, name):
        """Paths of sockets have at most 107 characters."""
        link = pathlib.Path(f"/tmp/gpupool-{os.getpid()}-{name}-{uuid.uuid4().hex[:6]}")
        (self.folder / name).mkdir()
        link.symlink_to(self.folder / name)
        self.addCleanup(link.unlink)
        return link

    def clean_up(self):
        """Nothing of the test may stay, and the API server may have been sent nothing invalid."""
        for daemon in self.daemons:
            daemon.stop()
        for lease in self.pool.leases() or []:  # of tests that failed
            self.pool.admin("evict", lease["id"], "--reason", "left by a test", "--grace", "0")
        self.assertEqual(self.api.faults, [])
        self.assertEqual([request for request in self.api.denied if not request.startswith("get secrets ")], [])

    def start_plugin(self):
        program = self.world.folder / "installed/bin/gpupool-kubernetes"
        common = ["--server", f"pool://{self.pool.address}", "--api-server", self.api.url]
        node = [program, "node", *common, *self.account("node"), "--node-name", NODE, "--kubelet-folder", self.kubelet.folder, "--state-folder",
                self.folder / "state", "--cdi-file", self.specification, "--prepare-wait", "3", "--unused-interval", "2", *self.node_options]
        controller = [program, "controller", *common, *self.account("controller"), "--operator-token-file", self.world.folder / "pool/operator.token",
                      "--interval", "1", *self.controller_options]
        self.node = Daemon("node", node, self.folder, dict(os.environ))
        self.controller = Daemon("controller", controller, self.folder, dict(os.environ))
        self.daemons = [self.node, self.controller]
        for daemon in self.daemons:
            daemon.start()
        eventually(self.devices, self.state)

    def account(self, name):
        """Returns the option with the token of a service account."""
        path = self.folder / f"account-{name}"
        path.write_text(name + "\n")
        return "--api-token-file", path

    def register(self):
        return eventually(self.kubelet.register, self.state)

    def state(self):
        logs = "".join(f"--- {one.name}\n{one.said()}\n" for one in self.daemons)
        return (f"the condition is met: leases {self.pool.leases()}, queue {self.pool.ask('queue')}, "
                f"events {[event['message'] for event in self.api.all('Event')]}\n{logs}{self.pool.logs()}")

    def devices(self):
        return [device for piece in self.api.all("ResourceSlice") for device in piece["spec"].get("devices", [])]

    def claim(self, space="research", count=1, compute="50", memory="128Mi", terms="", node=NODE, allocated=True):
        """Makes a claim as kube-scheduler leaves it: allocated, and reserved for a pod on the node."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        capacity = {key: value for key, value in (("compute", compute), ("memory", memory)) if value}
        exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count, "capacity": {"requests": capacity}}
        opaque = {"opaque": {"driver": DRIVER, "parameters": {"terms": terms}}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                 "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": [opaque] if terms else []}}}
        if allocated:
            device = self.devices()[0]["name"]
            result = {"driver": DRIVER, "request": "gpu", "pool": "gpupool", "device": device, "consumedCapacity": capacity}
            results = [{**result, "shareID": str(uuid.uuid4())} for _ in range(count)]
            claim["status"] = {"allocation": {"devices": {"results": results, "config": [{"source": "FromClaim", **opaque}] if terms else []}},
                               "reservedFor": [self.consumer(space, f"pod-{name}", node)]}
        return self.api.put("ResourceClaim", space, name, claim)

    def consumer(self, space, name, node):
        pod = self.api.put("Pod", space, name, {"spec": {"nodeName": node}})
        return {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}

    def prepared(self, claim):
        """Repeats the call until it succeeds, as the kubelet does. Returns the answer for the claim."""
        def attempt():
            answer = self.kubelet.prepare(claim)[claim["metadata"]["uid"]]
            return None if answer.error else answer
        return eventually(attempt, self.state, pause=0.5)

    def refused(self, claim):
        """Returns the error of a call that fails."""
        answer = self.kubelet.prepare(claim)[claim["metadata"]["uid"]]
        self.assertNotEqual(answer.error, "")
        self.assertEqual(len(answer.devices), 0)
        return answer.error

    def unprepared(self, claim):
        self.assertEqual(self.kubelet.unprepare(claim)[claim["metadata"]["uid"]].error, "")

    def restart_node(self):
        self.node.kill()
        self.node.start()

    def held(self):
        """Returns a claim that is prepared, and its lease."""
        claim = self.claim()
        self.prepared(claim)
        return claim, self.lease_of(claim)

    def await_held(self, claim, before):
        """Waits until the plugin holds the claim's lease, which must still be the same."""
        eventually(lambda: (self.lease_of(claim) or {}).get("held"), self.state)
        self.assertEqual(self.lease_of(claim)["id"], before["id"])

    def give_back(self, *claims):
        self.register()
        for claim in claims:
            self.unprepared(claim)
        self.await_idle()

    def container(self, answer):
        return Container.of_device(self.specification, answer.devices[0].cdi_device_ids[0])

    def lease_of(self, claim):
        """Returns the lease of a claim that is not ending; None: there is none."""
        program = f"claim {claim['metadata']['namespace']}/{claim['metadata']['name']}"
        found = [lease for lease in self.pool.leases() or [] if lease["program"] == program and not lease["ending"]]
        self.assertLessEqual(len(found), 1)
        return found[0] if found else None

    def await_idle(self):
        eventually(self.pool.is_idle, self.state)
        eventually(lambda: not os.listdir(self.folder / "state/claims"), self.state)
        self.assertFalse(self.specification.exists())

    def await_event(self, claim, reason):
        def find():
            return [event for event in self.api.events(claim) if event["reason"] == reason]
        return eventually(find, self.state)[0]["message"]
