"""Checked by mypy --strict, not run: the types of the package. Each `type: ignore` is a mistake that a type checker must
report; mypy reports those that are not needed."""
import pathlib
from typing import Optional, assert_type

import gpupool

assert_type(gpupool.connect("pool://scheduler:9800", gpus=2, memory="8GiB", compute=50, model=["H100", "H200"]), None)
gpupool.connect(token_file=pathlib.Path("token"), memory=1 << 30, one_host=True, priority="low", mode="hard", check=False)
gpupool.connect("pool://scheduler:9800", gpus="two")  # type: ignore[arg-type]
gpupool.connect("pool://scheduler:9800", priority="highest")  # type: ignore[arg-type]
gpupool.connect("pool://scheduler:9800", gpu=2)  # type: ignore[call-arg]

state = gpupool.status()
assert_type(state, gpupool.Status)
assert_type(state.servers, tuple[str, ...])
for device in state.devices:
    assert_type(device.memory_total, int)
    assert_type(device.utilization, Optional[int])
    assert_type(device.compute_capability, tuple[int, int])
    device.name = "other"  # type: ignore[misc]
assert_type(gpupool.__version__, str)
error: gpupool.Error = gpupool.ServerError("text")
