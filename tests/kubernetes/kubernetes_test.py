"""Runs gpupool-kubernetes with a kubelet and an API server that the test plays, on a pool of softgpu.

    kubernetes_test.py BUILD [unittest's arguments]

Exits with 77 without root or the examples.
"""
import contextlib
import os
import pathlib
import sys
import tempfile

from plugin import PluginTest, World
import cases
# unittest runs the tests of the classes that this module has.
from claims import Claims, DefaultToken, Waits
from device_plugins import DevicePlugins, Streams
from restarts import Restarts
from slices import RareLooks, Slices, WithoutConsumableCapacity

TESTS = (Claims, DefaultToken, DevicePlugins, RareLooks, Restarts, Slices, Streams, Waits, WithoutConsumableCapacity)


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
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupool-kubernetes-"))
        PluginTest.world = World(BUILD, pathlib.Path(folder), stack)
        cases.main()
