"""Functions for programs that use the driver as CUDA's runtime and PyTorch do: a library that they open by its name."""
import ctypes
import pathlib


def open_by_name():
    return ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"error {result} of the driver"


def count_devices(cuda):
    check(cuda.cuInit(0))
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def make_context(cuda):
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def allocate(cuda, size):
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    return address


def copy_there_and_back(cuda, data):
    address, back = allocate(cuda, len(data)), ctypes.create_string_buffer(len(data))
    check(cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(len(data))))
    check(cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(len(data))))
    check(cuda.cuMemFree_v2(address))
    return back.raw


def loaded_libraries(name):
    """Returns the files of this process whose names begin so."""
    files = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count("/")}
    return sorted(path for path in files if pathlib.Path(path).name.startswith(name))
