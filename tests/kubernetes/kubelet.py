"""The kubelet's side of the sockets of gpupool-kubernetes, and the container engine's use of a CDI device."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import grpc
import grpc_tools

CALL_SECONDS = 45  # as the kubelet's


def load_interfaces(protos, folder):
    """Generates Python from the .proto files; returns the modules by name."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"-I{pathlib.Path(grpc_tools.__file__).parent}/_proto",
                    f"--python_out={folder}", f"--grpc_python_out={folder}",
                    *(f"{protos}/{name}.proto" for name in ("dra", "registration", "device_plugin"))], check=True)
    sys.path.insert(0, str(folder))
    return {name: __import__(name) for name in ("dra_pb2", "dra_pb2_grpc", "registration_pb2", "registration_pb2_grpc",
                                                "device_plugin_pb2", "device_plugin_pb2_grpc")}


class Kubelet:
    """Finds the driver as the kubelet does: by the sockets in plugins_registry/."""

    def __init__(self, folder, interfaces):
        self.folder, self.of = pathlib.Path(folder), interfaces
        for name in ("plugins_registry", "plugins", "device-plugins"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.endpoint = ""

    def register(self):
        """Returns the plugin's description, or None if there is no socket that answers."""
        for socket in (self.folder / "plugins_registry").glob("*.sock"):
            try:
                with grpc.insecure_channel(f"unix://{socket}") as channel:
                    stub = self.of["registration_pb2_grpc"].RegistrationStub(channel)
                    info = stub.GetInfo(self.of["registration_pb2"].InfoRequest(), timeout=5)
                    stub.NotifyRegistrationStatus(self.of["registration_pb2"].RegistrationStatus(plugin_registered=True), timeout=5)
            except grpc.RpcError:
                continue
            self.endpoint = info.endpoint
            return info
        return None

    def call(self, name, claims):
        dra = self.of["dra_pb2"]
        request = getattr(dra, f"{name}Request")(claims=[
            dra.Claim(namespace=one["metadata"]["namespace"], name=one["metadata"]["name"], uid=one["metadata"]["uid"]) for one in claims])
        with grpc.insecure_channel(f"unix://{self.endpoint}") as channel:
            stub = self.of["dra_pb2_grpc"].DRAPluginStub(channel)
            return getattr(stub, name)(request, timeout=CALL_SECONDS).claims

    def prepare(self, *claims):
        return self.call("NodePrepareResources", claims)

    def unprepare(self, *claims):
        return self.call("NodeUnprepareResources", claims)


class DevicePluginKubelet:
    """The kubelet's registration socket for device plugins, for the duration of `with`."""

    def __init__(self, kubelet):
        self.folder, self.of = kubelet.folder / "device-plugins", kubelet.of
        self.registered, self.lock = [], threading.Lock()

    def __enter__(self):
        for left in self.folder.glob("*"):
            left.unlink()  # the kubelet does this when it starts
        owner, grpc_of, pb = self, self.of["device_plugin_pb2_grpc"], self.of["device_plugin_pb2"]

        class Registration(grpc_of.RegistrationServicer):
            def Register(self, request, context):
                with owner.lock:
                    owner.registered.append(request)
                return pb.Empty()

        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        grpc_of.add_RegistrationServicer_to_server(Registration(), self.server)
        self.server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(0).wait()

    def resources(self):
        with self.lock:
            return {request.resource_name: request for request in self.registered}

    def stub(self, request):
        channel = grpc.insecure_channel(f"unix://{self.folder}/{request.endpoint}")
        return self.of["device_plugin_pb2_grpc"].DevicePluginStub(channel)

    @contextlib.contextmanager
    def watch(self, request):
        """Yields a call of ListAndWatch, which ends with the context."""
        # Channels with the same options share a connection, and with it the limit of calls in it.
        with grpc.insecure_channel(f"unix://{self.folder}/{request.endpoint}", (("grpc.use_local_subchannel_pool", 1),)) as channel:
            yield self.of["device_plugin_pb2_grpc"].DevicePluginStub(channel).ListAndWatch(self.of["device_plugin_pb2"].Empty(), timeout=60)

    def list(self, request):
        for answer in self.stub(request).ListAndWatch(self.of["device_plugin_pb2"].Empty(), timeout=10):
            return list(answer.devices)
        return []

    def allocate(self, request, ids):
        pb = self.of["device_plugin_pb2"]
        call = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return self.stub(request).Allocate(call, timeout=20).container_responses[0]


class Container:
    """What an engine makes of variables and mounts. Programs run without mount namespaces: paths in values are those of the
    container, so they are replaced by the host's."""

    def __init__(self, variables, mounts):
        self.variables, self.mounts = variables, mounts

    @classmethod
    def of_device(cls, specification, name):
        parsed = json.loads(pathlib.Path(specification).read_text())
        kind, _, device = name.partition("=")
        assert kind == parsed["kind"], name
        edits = [parsed["containerEdits"], *(one["containerEdits"] for one in parsed["devices"] if one["name"] == device)]
        assert len(edits) == 2, f"{name} is not in {parsed}"
        variables = dict(pair.split("=", 1) for one in edits for pair in one.get("env", []))
        mounts = {mount["containerPath"]: mount["hostPath"] for one in edits for mount in one.get("mounts", [])}
        return cls(variables, mounts)

    @classmethod
    def of_answer(cls, answer):
        return cls(dict(answer.envs), {mount.container_path: mount.host_path for mount in answer.mounts})

    def environment(self):
        variables = dict(self.variables)
        for inside, outside in sorted(self.mounts.items(), key=lambda pair: -len(pair[0])):
            assert os.path.exists(outside), f"the mount {outside} does not exist"
            variables = {name: value.replace(inside, outside) for name, value in variables.items()}
        return {"PATH": "/usr/bin:/bin", **variables}

    def start(self, *words, **more):
        return subprocess.Popen([str(word) for word in words], env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                stdin=subprocess.PIPE, text=True, **more)

    def run(self, *words, **more):
        process = self.start(*words, **more)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out
