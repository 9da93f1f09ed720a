"""nvml.py SERVER MEMORY: NVIDIA's package nvidia-ml-py shows the GPU of a server after connect()."""
import sys

import gpupool

gpupool.connect(sys.argv[1])

import pynvml  # noqa: E402  (the order is what is tested)

pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 1
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
(device,) = gpupool.status().devices
assert pynvml.nvmlDeviceGetName(handle) == device.name and pynvml.nvmlDeviceGetUUID(handle) == device.uuid
assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == device.memory_total == int(sys.argv[2])
pynvml.nvmlShutdown()
