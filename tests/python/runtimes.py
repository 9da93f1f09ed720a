"""Tests every CUDA runtime of PyPI, used as by a program that nvcc built.

    runtimes.py FOLDER LIST

LIST has lines PACKAGE==VERSION; those of nvidia-cuda-runtime* are tested. Each version's libcudart is downloaded into
FOLDER once, and a program uses it in a separate process. Exits with 77 if PyPI cannot be reached.
"""
import ctypes as c
import fcntl
import importlib.util
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile

DOWNLOAD_SECONDS = 120
RUN_SECONDS = 120

COUNT = 4096
PTX = rb"""
.version 6.5
.target sm_50
.address_size 64
.visible .global .align 4 .u32 launches;
.visible .entry add(.param .u64 values, .param .u32 amount, .param .u32 count) {
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [values];
  ld.param.u32 %r1, [amount];
  ld.param.u32 %r2, [count];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ne.u32 %p2, %r6, 0;
  @%p2 bra COUNTED;
  atom.global.add.u32 %r8, [launches], 1;
COUNTED:
  setp.ge.u32 %p1, %r6, %r2;
  @%p1 bra DONE;
  mul.wide.u32 %d2, %r6, 4;
  add.u64 %d3, %d1, %d2;
  ld.global.u32 %r7, [%d3];
  add.u32 %r7, %r7, %r1;
  st.global.u32 [%d3], %r7;
DONE:
  ret;
}
""" + b"\0"
NEWER_PTX = PTX.replace(b".version 6.5", b".version 8.7").replace(b"sm_50", b"sm_120")  # newer than softgpu's device
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
NOT_READY, INVALID_VALUE, MEMORY_ALLOCATION, INVALID_CONFIGURATION = 600, 1, 2, 9
INVALID_DEVICE_FUNCTION, NO_KERNEL_IMAGE = 98, 209


class Dim(c.Structure):
    _fields_ = [("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint)]


class Wrapper(c.Structure):  # nvcc's wrapper of a fat binary
    _fields_ = [("magic", c.c_uint), ("version", c.c_uint), ("data", c.c_void_p), ("list", c.c_void_p)]


def fat_binary(ptx, capability=50):
    payload = ptx + b"\0" * (-len(ptx) % 8)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, len(payload), 0, 0, 5, 6, capability, 0, 0, 0x11, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(payload)) + entry + payload


class Runtime:
    """A libcudart whose calls raise RuntimeError on failure."""

    def __init__(self, path):
        self.library = c.CDLL(str(path))
        self.library.cudaGetErrorName.restype = c.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*words):
            result = function(*words)
            if result:
                raise RuntimeError(f"{name}: {self.library.cudaGetErrorName(result).decode()}")
        return call

    def expect(self, wanted, name, *words):
        result = getattr(self.library, name)(*words)
        assert result in wanted, f"{name}: {result}, expected {wanted}"
        self.library.cudaGetLastError()


def registered_kernel(cuda, image):
    """Registers a kernel as nvcc's constructor in a program does. Returns pointers that identify the kernel and its variable, and
    objects that must be kept alive."""
    data = c.create_string_buffer(image)
    wrapper = Wrapper(0x466243B1, 1, c.addressof(data), None)
    stub, variable = c.create_string_buffer(16), c.create_string_buffer(4)
    library = cuda.library
    library.__cudaRegisterFatBinary.restype = c.c_void_p
    handle = c.c_void_p(library.__cudaRegisterFatBinary(c.byref(wrapper)))
    library.__cudaRegisterFunction(handle, c.byref(stub), c.c_char_p(b"add"), c.c_char_p(b"add"), -1, None, None, None, None, None)
    library.__cudaRegisterVar(handle, c.byref(variable), c.c_char_p(b"launches"), c.c_char_p(b"launches"), 0, c.c_size_t(4), 0, 0)
    library.__cudaRegisterFatBinaryEnd(handle)
    return c.byref(stub), c.byref(variable), (data, wrapper, stub, variable)


def program(path, version, told):
    """Tests one runtime. `told`: the driver version that it must see; 0: any."""
    cuda = Runtime(path)
    kernel, variable, _kept = registered_kernel(cuda, fat_binary(PTX))
    missing, _, _kept_too = registered_kernel(cuda, fat_binary(NEWER_PTX, 120))
    number = c.c_int()
    cuda.cudaRuntimeGetVersion(c.byref(number))
    assert number.value // 10 == version[0] * 100 + version[1], number.value
    cuda.cudaGetDeviceCount(c.byref(number))
    assert number.value >= 1
    if told:
        cuda.cudaDriverGetVersion(c.byref(number))
        assert number.value == told, number.value
    cuda.cudaDeviceGetAttribute(c.byref(number), 10, 0)
    assert number.value == 32  # warp size

    def launch(values, amount, stream=None):
        words = (c.c_void_p * 3)(*(c.cast(c.pointer(word), c.c_void_p) for word in (values, c.c_uint(amount), c.c_uint(COUNT))))
        cuda.cudaLaunchKernel(kernel, Dim(COUNT // 128, 1, 1), Dim(128, 1, 1), words, c.c_size_t(0), stream)

    # Memory and a launch.
    size = c.c_size_t(COUNT * 4)
    values, other = c.c_void_p(), c.c_void_p()
    numbers, back = (c.c_uint * COUNT)(*range(COUNT)), (c.c_uint * COUNT)()
    cuda.cudaMalloc(c.byref(values), size)
    cuda.cudaMalloc(c.byref(other), size)
    cuda.cudaMemcpy(values, numbers, size, HOST_TO_DEVICE)
    launch(values, 5)
    cuda.cudaMemcpy(other, values, size, DEVICE_TO_DEVICE)
    cuda.cudaMemcpy(back, other, size, DEVICE_TO_HOST)
    assert list(back) == [n + 5 for n in range(COUNT)]
    cuda.cudaMemset(values, 0, size)

    # Streams, events, pinned memory, host functions.
    stream, second, begin, end = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    pinned = c.c_void_p()
    cuda.cudaMallocHost(c.byref(pinned), size)
    cuda.cudaStreamCreate(c.byref(stream))
    cuda.cudaStreamCreateWithFlags(c.byref(second), 1)
    cuda.cudaEventCreate(c.byref(begin))
    cuda.cudaEventCreate(c.byref(end))
    cuda.cudaEventRecord(begin, stream)
    for _ in range(3):
        launch(values, 7, stream)
    cuda.cudaEventRecord(end, stream)
    cuda.cudaStreamWaitEvent(second, end, 0)
    cuda.cudaMemcpyAsync(pinned, values, size, DEVICE_TO_HOST, second)
    called = threading.Event()
    function = c.CFUNCTYPE(None, c.c_void_p)(lambda _: called.set())
    cuda.cudaLaunchHostFunc(second, function, None)
    cuda.cudaStreamSynchronize(second)
    assert called.is_set()
    assert set((c.c_uint * COUNT).from_address(pinned.value)) == {21}
    milliseconds = c.c_float(-1)
    cuda.cudaEventElapsedTime(c.byref(milliseconds), begin, end)
    assert milliseconds.value >= 0
    cuda.cudaStreamQuery(stream)

    # A captured graph.
    graph, executable = c.c_void_p(), c.c_void_p()
    cuda.cudaStreamBeginCapture(stream, 0)
    launch(values, 1, stream)
    launch(values, 2, stream)
    cuda.cudaStreamEndCapture(stream, c.byref(graph))
    if version[0] < 12:
        cuda.cudaGraphInstantiate(c.byref(executable), graph, None, None, c.c_size_t(0))
    else:
        cuda.cudaGraphInstantiate(c.byref(executable), graph, c.c_ulonglong(0))
    for _ in range(4):
        cuda.cudaGraphLaunch(executable, stream)
    cuda.cudaMemcpyAsync(back, values, size, DEVICE_TO_HOST, stream)
    cuda.cudaStreamSynchronize(stream)
    assert set(back) == {21 + 12}
    cuda.cudaGraphExecDestroy(executable)
    cuda.cudaGraphDestroy(graph)

    # The module's variable, the kernel's attributes, memory of a stream.
    launches = c.c_uint()
    cuda.cudaMemcpyFromSymbol(c.byref(launches), variable, c.c_size_t(4), c.c_size_t(0), DEVICE_TO_HOST)
    assert launches.value == 1 + 3 + 8, launches.value
    blocks = c.c_int()
    cuda.cudaOccupancyMaxActiveBlocksPerMultiprocessor(c.byref(blocks), kernel, 128, c.c_size_t(0))
    assert blocks.value > 0
    passing = c.c_void_p()
    cuda.cudaMallocAsync(c.byref(passing), size, stream)
    cuda.cudaMemsetAsync(passing, 0, size, stream)
    launch(passing, 9, stream)
    cuda.cudaMemcpyAsync(back, passing, size, DEVICE_TO_HOST, stream)
    cuda.cudaFreeAsync(passing, stream)
    cuda.cudaStreamSynchronize(stream)
    assert set(back) == {9}

    # PTX loaded at run time, if the runtime supports it (12.8 and newer).
    loaded = hasattr(cuda.library, "cudaLibraryLoadData")
    if loaded:
        library, function = c.c_void_p(), c.c_void_p()
        cuda.cudaLibraryLoadData(c.byref(library), PTX, None, None, 0, None, None, 0)
        cuda.cudaLibraryGetKernel(c.byref(function), library, c.c_char_p(b"add"))
        words = (c.c_void_p * 3)(*(c.cast(c.pointer(word), c.c_void_p) for word in (values, c.c_uint(1), c.c_uint(COUNT))))
        cuda.cudaLaunchKernel(function, Dim(COUNT // 128, 1, 1), Dim(128, 1, 1), words, c.c_size_t(0), None)
        cuda.cudaMemcpy(back, values, size, DEVICE_TO_HOST)
        assert set(back) == {34}
        cuda.cudaLibraryUnload(library)

    # A kernel without code for the device fails each time; other kernels still work.
    attributes = c.create_string_buffer(1024)
    wanted = [NO_KERNEL_IMAGE] if version[0] > 11 else [NO_KERNEL_IMAGE, INVALID_DEVICE_FUNCTION]
    words = (c.c_void_p * 3)(*(c.cast(c.pointer(word), c.c_void_p) for word in (values, c.c_uint(1), c.c_uint(COUNT))))
    for _ in range(3):
        cuda.expect(wanted, "cudaFuncGetAttributes", attributes, missing)
    for _ in range(2):
        cuda.expect([NO_KERNEL_IMAGE], "cudaLaunchKernel", missing, Dim(1, 1, 1), Dim(1, 1, 1), words, c.c_size_t(0), None)
    cuda.cudaFuncGetAttributes(attributes, kernel)
    cuda.cudaDeviceSynchronize()

    # Errors.
    cuda.expect([MEMORY_ALLOCATION], "cudaMalloc", c.byref(passing), c.c_size_t(1 << 46))
    cuda.expect([INVALID_VALUE], "cudaMalloc", None, size)
    # CUDA 13's runtimes return the driver's error unchanged.
    cuda.expect([INVALID_CONFIGURATION] if version[0] < 13 else [INVALID_CONFIGURATION, INVALID_VALUE], "cudaLaunchKernel", kernel, Dim(1, 1, 1), Dim(0, 1, 1), words, c.c_size_t(0), None)

    for event in (begin, end):
        cuda.cudaEventDestroy(event)
    for done in (stream, second):
        cuda.cudaStreamDestroy(done)
    cuda.cudaFreeHost(pinned)
    cuda.cudaFree(values)
    cuda.cudaFree(other)
    cuda.cudaDeviceReset()
    print(f"cudart {sys.argv[3]}: works{', with cudaLibraryLoadData' if loaded else ''}")


def listed(path):
    """Returns the (package, version) pairs of the runtimes in the list."""
    lines = (line.split("#")[0].strip() for line in pathlib.Path(path).read_text().splitlines())
    return [tuple(line.split("==")) for line in lines if line.startswith("nvidia-cuda-runtime")]


def python_with_pip(folder):
    """Returns this interpreter or, if it has no pip (as on Debian), that of a virtual environment in the folder."""
    if importlib.util.find_spec("pip"):
        return sys.executable
    environment = pathlib.Path(folder, "pip")
    if not (environment / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], stdout=subprocess.DEVNULL)
    return environment / "bin" / "python3"


def download(folder, package, version):
    """Downloads the version's libcudart and returns its path, or None on failure. Keeps only the library of the package."""
    target = pathlib.Path(folder, version)
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            pip = [python_with_pip(folder), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps",
                   "--only-binary=:all:", "--dest", temporary, f"{package}=={version}"]
            try:
                if subprocess.run(pip, timeout=DOWNLOAD_SECONDS).returncode:
                    return None
            except (subprocess.TimeoutExpired, OSError):
                return None
            made = pathlib.Path(temporary, "made")
            made.mkdir()
            with zipfile.ZipFile(next(pathlib.Path(temporary).glob("*.whl"))) as wheel:
                name = next(name for name in wheel.namelist() if "/lib/libcudart.so." in name)
                with wheel.open(name) as packed, open(made / pathlib.Path(name).name, "wb") as library:
                    shutil.copyfileobj(packed, library)
            made.rename(target)
    return next(target.glob("libcudart.so.*"))


def run(path, version):
    """Runs the test program with this runtime in a separate process. Returns True on success."""
    try:
        return subprocess.run([sys.executable, __file__, "--run", path, version], timeout=RUN_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"cudart {version}: timed out after {RUN_SECONDS} s")
        return False


def main():
    if sys.argv[1] == "--run":
        program(sys.argv[2], [int(part) for part in sys.argv[3].split(".")[:2]], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
        return 0
    folder, releases = sys.argv[1:]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    libraries, missing = {}, ""
    with open(pathlib.Path(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for package, version in listed(releases):
            path = download(folder, package, version)
            if path is None:  # the rest is not tried, because each attempt could take as long
                missing = f"skipped: {package} {version} cannot be downloaded from PyPI; later rows were not tried"
                break
            libraries[version] = path
    assert libraries or missing, f"no runtimes in {releases}"
    failed = [version for version, path in libraries.items() if not run(path, version)]
    print(len(libraries) - len(failed), "of", len(libraries), "runtimes work")
    if failed:
        print("failed:", *failed)
        return 1
    if missing:
        print(missing)
    return 77 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
