"""connects.py SERVER MEMORY: connects, then uses the driver and NVML by their names, in this process and in a child.
Prints the variables that connect() has set as JSON."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys

import gpupool
import driver

MIB = 1 << 20
server, memory = sys.argv[1], int(sys.argv[2])
before = dict(os.environ)
assert gpupool.connect(server) is None
gpupool.connect(server)  # the same again has no effect

status = gpupool.status()
assert (status.address, status.servers) == (server, (server,)), status
(device,) = status.devices
assert "softgpu" in device.name and device.uuid.startswith("GPU-"), device
assert (device.memory_total, device.memory_used) == (memory, 0), device
assert device.index == 0 and device.compute_capability == (9, 0) and status.cuda_version, status

cuda = driver.open_by_name()
assert driver.count_devices(cuda) == 1
driver.make_context(cuda)
data = bytes(range(256)) * 1000
assert driver.copy_there_and_back(cuda, data) == data
driver.allocate(cuda, 32 * MIB)
(device,) = gpupool.status().devices
assert 32 * MIB <= device.memory_used < memory and device.memory_free <= memory - 32 * MIB, device
gpupool.connect(server)  # also once CUDA is in use

folder = pathlib.Path(gpupool.__file__).resolve().parent / "lib" / "client"
for name in ("libcuda.so", "libnvidia-ml.so"):
    assert driver.loaded_libraries(name) == [str(folder / f"{name}.1")], driver.loaded_libraries(name)
assert ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0

child = "import driver; assert driver.count_devices(driver.open_by_name()) == 1"
subprocess.run([sys.executable, "-c", child], cwd=pathlib.Path(__file__).parent, check=True)
print(json.dumps({name: value for name, value in os.environ.items() if before.get(name) != value}))
