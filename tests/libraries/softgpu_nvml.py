"""softgpu's libnvidia-ml.so.1: NVML and CUDA report the same devices, and CUDA still works in a child forked after NVML calls.

    softgpu_nvml.py DEVICES       LD_LIBRARY_PATH must have softgpu
"""
import ctypes as c
import os
import sys

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3


class Uuid(c.Structure):
    _fields_ = [("bytes", c.c_ubyte * 16)]


def text(ask, *words):
    buffer = c.create_string_buffer(128)
    assert ask(*words, buffer, c.c_uint(96)) == SUCCESS
    return buffer.value.decode()


def identities():
    """Returns NVML's name, UUID, PCI bus id and compute capability of each device, looked up by bus id."""
    nvml = c.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == SUCCESS
    count = c.c_uint()
    assert nvml.nvmlDeviceGetCount_v2(c.byref(count)) == SUCCESS
    found = []
    for index in range(count.value):
        device, again, major, minor = c.c_void_p(), c.c_void_p(), c.c_int(), c.c_int()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(index, c.byref(device)) == SUCCESS
        pci = c.create_string_buffer(128)  # nvmlPciInfo_t: busIdLegacy comes first
        assert nvml.nvmlDeviceGetPciInfo_v3(device, pci) == SUCCESS
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(pci.value, c.byref(again)) == SUCCESS and again.value == device.value
        assert nvml.nvmlDeviceGetCudaComputeCapability(device, c.byref(major), c.byref(minor)) == SUCCESS
        found.append((text(nvml.nvmlDeviceGetName, device), text(nvml.nvmlDeviceGetUUID, device), pci.value.decode().lower(), major.value, minor.value))
        # This library does not know the memory use and utilization.
        assert nvml.nvmlDeviceGetMemoryInfo(device, c.create_string_buffer(64)) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetUtilizationRates(device, c.create_string_buffer(64)) == NOT_SUPPORTED
    assert nvml.nvmlDeviceGetHandleByIndex_v2(count.value, c.byref(c.c_void_p())) == INVALID_ARGUMENT
    version = c.c_int()
    assert nvml.nvmlSystemGetCudaDriverVersion(c.byref(version)) == SUCCESS
    assert nvml.nvmlShutdown() == SUCCESS
    return found, version.value


def devices_of_cuda():
    cuda = c.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == SUCCESS
    count, version = c.c_int(), c.c_int()
    assert cuda.cuDeviceGetCount(c.byref(count)) == SUCCESS and cuda.cuDriverGetVersion(c.byref(version)) == SUCCESS
    found = []
    for index in range(count.value):
        uuid, major, minor, name, bus = Uuid(), c.c_int(), c.c_int(), c.create_string_buffer(96), c.create_string_buffer(32)
        for result in (cuda.cuDeviceGetName(name, 96, index), cuda.cuDeviceGetUuid(c.byref(uuid), index), cuda.cuDeviceGetPCIBusId(bus, 32, index),
                       cuda.cuDeviceGetAttribute(c.byref(major), 75, index), cuda.cuDeviceGetAttribute(c.byref(minor), 76, index)):
            assert result == SUCCESS
        digits = bytes(uuid.bytes).hex()
        parts = [digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))]
        found.append((name.value.decode(), "GPU-" + "-".join(parts), bus.value.decode().lower(), major.value, minor.value))
    return found, version.value


def main():
    told = identities()
    child = os.fork()
    if child == 0:
        here = devices_of_cuda()
        if here != told:
            print(f"NVML: {told}\nCUDA: {here}")
        os._exit(0 if here == told and len(here[0]) == int(sys.argv[1]) else 1)
    status = os.waitpid(child, 0)[1]
    print("NVML and CUDA agree" if status == 0 else f"the child ended with {status}")
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
