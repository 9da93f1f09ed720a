# Makes the NVML calls of tools like nvitop and gpustat, through NVIDIA's Python binding, for a server with one GPU of 256 MiB that is used by
# one driver_app. The argument is the process id of that program.
import re
import sys

import pynvml as n


def refused(error, call, *arguments):
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call.__name__} was not refused with {error.__name__}")


names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', open(n.__file__).read()))
n.nvmlInit()
missing = []
for name in sorted(names):
    try:
        n._nvmlGetFunctionPointer(name)
    except n.NVMLError_FunctionNotFound:
        missing.append(name)
assert not missing, missing

assert n.nvmlDeviceGetCount() == 1
device = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceGetUUID(device).startswith("GPU-") and len(n.nvmlDeviceGetUUID(device)) == 40
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(device))) == 0
pci = n.nvmlDeviceGetPciInfo(device)
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == 0
assert pci.busIdLegacy.endswith(pci.busId[4:])
assert n.nvmlSystemGetDriverVersion().split(".")[0].isdigit()
assert n.nvmlSystemGetCudaDriverVersion_v2() >= 11000
assert n.nvmlDeviceGetName(device)
memory, memory_2 = n.nvmlDeviceGetMemoryInfo(device), n.nvmlDeviceGetMemoryInfo(device, version=n.nvmlMemory_v2)
assert memory.total == memory_2.total == 256 << 20 and memory.used + memory.free == memory.total
assert memory_2.used >= 128 << 20
processes = n.nvmlDeviceGetComputeRunningProcesses(device)
assert [process.pid for process in processes] == [int(sys.argv[1])], processes
assert processes[0].usedGpuMemory >= 128 << 20
assert n.nvmlSystemGetProcessName(processes[0].pid).endswith("driver_app")
assert n.nvmlDeviceGetGraphicsRunningProcesses(device) == []
assert n.nvmlDeviceGetUtilizationRates(device).gpu == 0
assert n.nvmlDeviceGetComputeMode(device) == n.NVML_COMPUTEMODE_DEFAULT
# Not supported: softgpu's clocks and ECC mode are invented, and poold does not read the driver's settings.
for unknown in (
    lambda: n.nvmlDeviceGetPersistenceMode(device),
    lambda: n.nvmlDeviceGetEccMode(device),
    lambda: n.nvmlDeviceGetMaxClockInfo(device, n.NVML_CLOCK_SM),
    lambda: n.nvmlDeviceGetMaxClockInfo(device, n.NVML_CLOCK_MEM),
    lambda: n.nvmlDeviceGetClockInfo(device, n.NVML_CLOCK_SM),
):
    refused(n.NVMLError_NotSupported, unknown)
major, minor = n.nvmlDeviceGetCudaComputeCapability(device)
assert major >= 7
assert n.nvmlDeviceGetArchitecture(device) >= n.NVML_DEVICE_ARCH_VOLTA
fields = n.nvmlDeviceGetFieldValues(device, [n.NVML_FI_DEV_NVLINK_LINK_COUNT, n.NVML_FI_DEV_MEMORY_TEMP])
assert fields[0].nvmlReturn == 0 and fields[0].value.uiVal == 0 and fields[1].nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED
for unknown in (n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetFanSpeed, n.nvmlDeviceGetMigMode, n.nvmlDeviceGetSerial):
    refused(n.NVMLError_NotSupported, unknown, device)
refused(n.NVMLError_NotSupported, n.nvmlDeviceGetTemperature, device, n.NVML_TEMPERATURE_GPU)
refused(n.NVMLError_NoPermission, n.nvmlDeviceSetPersistenceMode, device, 1)
refused(n.NVMLError_NoPermission, n.nvmlDeviceSetPowerManagementLimit, device, 1)
n.nvmlShutdown()
refused(n.NVMLError_Uninitialized, n.nvmlDeviceGetCount)
print(f"{len(names)} functions found")
