"""Helpers of the library tests: loading libraries, device memory and streams, graphs, threads."""
import ctypes as c
import ctypes.util
import glob
import os
import struct
import threading

FOLDERS = [os.path.join(root, "lib64") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]


class Missing(Exception):
    """The library is not installed."""


class Library:
    """A shared library whose functions raise RuntimeError if they return anything but 0."""

    def __init__(self, name):
        paths = [path for folder in FOLDERS for path in sorted(glob.glob(f"{folder}/lib{name}.so.*"))] or [ctypes.util.find_library(name)]
        if not paths[0]:
            raise Missing(f"lib{name}.so is not installed")
        self.library = c.CDLL(paths[0], mode=c.RTLD_GLOBAL)

    def __getattr__(self, name):
        try:
            function = getattr(self.library, name)
        except AttributeError as missing:
            raise Missing(str(missing)) from missing  # the toolkit is older

        def call(*words):
            status = function(*words)
            if status:
                raise RuntimeError(f"{name} returned {status}")
        return call

    def make(self, name, *words):
        """Calls a function whose first parameter receives a handle, and returns the handle."""
        handle = c.c_void_p()
        getattr(self, name)(c.byref(handle), *words)
        return handle

    def ask(self, kind, name, *words):
        """Calls a function whose last parameter receives a value, and returns the value."""
        value = kind()
        getattr(self, name)(*words, c.byref(value))
        return value.value

    def refuses(self, status, name, *words):
        got = getattr(self.library, name)(*words)
        assert got == status, f"{name} returned {got}, expected {status}"


class Driver(Library):
    def __init__(self):
        self.library = c.CDLL("libcuda.so.1")


class Device:
    """Device memory and a stream of the CUDA runtime. `computes`: the device executes the libraries' kernels, so results are checked."""

    def __init__(self):
        self.runtime = Library("cudart")
        self.driver = Driver()
        name = c.create_string_buffer(200)
        self.driver.cuInit(0)
        self.driver.cuDeviceGetName(name, 200, 0)
        self.soft = name.value.startswith(b"softgpu")
        self.computes = not self.soft or os.environ.get("SOFTGPU_SKIP_MACHINE_CODE") != "1"
        version = c.c_int()
        self.runtime.cudaRuntimeGetVersion(c.byref(version))
        self.runtime_version = version.value
        if not self.computes and version.value < 12000:
            raise Missing("libraries before CUDA 12 go by what their kernels compute, and those are skipped here")
        major = c.c_int()
        self.driver.cuDeviceGetAttribute(c.byref(major), 75, 0)
        self.newer = major.value >= 13  # newer than the libraries, which have PTX for it, but not for all kernels
        self.stream = self.runtime.make("cudaStreamCreate")
        self.memory = []

    def count(self):
        number = c.c_int()
        self.runtime.cudaGetDeviceCount(c.byref(number))
        return number.value

    def of(self, code, values):
        """Returns a device copy of numbers. `code`: a format character of Python's struct module, or "b16" for bfloat16."""
        data = b"".join(struct.pack("<f", value)[2:] for value in values) if code == "b16" else struct.pack(f"<{len(values)}{code}", *values)
        memory = self.space(len(data))
        self.runtime.cudaMemcpy(memory, data, c.c_size_t(len(data)), 1)
        return memory

    def floats(self, values):
        return self.of("f", list(values))

    def doubles(self, values):
        return self.of("d", list(values))

    def integers(self, values):
        return self.of("i", list(values))

    def addresses(self, base, step, count):
        """Returns a device array of the addresses base, base + step, ..."""
        return self.of("Q", [base.value + n * step for n in range(count)])

    def space(self, size):
        memory = c.c_void_p()
        self.runtime.cudaMalloc(c.byref(memory), c.c_size_t(max(size, 4)))
        self.memory.append(memory)
        return memory

    def release(self):
        while self.memory:
            self.runtime.cudaFree(self.memory.pop())

    def read(self, memory, count, code="f", stream=None):
        data = c.create_string_buffer(count * (2 if code == "b16" else struct.calcsize(code)))
        self.runtime.cudaStreamSynchronize(stream or self.stream)
        self.runtime.cudaMemcpy(data, memory, c.c_size_t(len(data)), 2)
        if code == "b16":
            return [struct.unpack("<f", b"\0\0" + data.raw[n:n + 2])[0] for n in range(0, 2 * count, 2)]
        return list(struct.unpack(f"<{count}{code}", data.raw))

    def expect(self, memory, wanted, tolerance=1e-4, code="f", stream=None):
        self.same(self.read(memory, len(wanted), code, stream), wanted, tolerance)

    def same(self, got, wanted, tolerance=1e-4):
        if not self.computes:
            return
        assert len(got) == len(wanted)
        for n, (have, want) in enumerate(zip(got, wanted)):
            assert abs(have - want) <= tolerance * max(1, abs(want)), f"{n}: {have}, expected {want}"

    def captured(self, work, times=2):
        """Captures the stream's work in a graph and launches it `times` times."""
        self.runtime.cudaStreamBeginCapture(self.stream, 2)  # relaxed
        try:
            work()
        finally:
            graph = c.c_void_p()
            ended = self.runtime.library.cudaStreamEndCapture(self.stream, c.byref(graph))
        assert ended == 0, f"the capture ended with {ended}"
        executable = self.runtime.make("cudaGraphInstantiateWithFlags", graph, c.c_ulonglong(0))  # cudaGraphInstantiate has other parameters before CUDA 12
        for _ in range(times):
            self.runtime.cudaGraphLaunch(executable, self.stream)
        self.runtime.cudaStreamSynchronize(self.stream)
        self.runtime.cudaGraphExecDestroy(executable)
        self.runtime.cudaGraphDestroy(graph)


def threads(count, work):
    """Runs work(n) in `count` threads at once, and raises the first exception of a thread."""
    failed = []

    def run(n):
        try:
            work(n)
        except BaseException as failure:  # includes AssertionError
            failed.append(failure)

    running = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]


def product(a, b, rows, inner, columns):
    """Multiplies matrices in column order, as in BLAS."""
    return [sum(a[k * rows + i] * b[j * inner + k] for k in range(inner)) for j in range(columns) for i in range(rows)]


def transposed(a, rows, columns):
    return [a[j * rows + i] for i in range(rows) for j in range(columns)]


def numbers(count, seed=1):
    """Returns small pseudo-random numbers that half precision represents exactly."""
    state, values = seed, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        values.append((state >> 16) % 17 / 8 - 1)
    return values
