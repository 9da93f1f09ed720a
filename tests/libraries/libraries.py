"""NVIDIA's libraries start up and make their calls: `libraries.py NAME`, with the driver that LD_LIBRARY_PATH leads to.

What each call returns is checked, and on a GPU what it computes; softgpu skips their machine code. Status 77: not installed.
"""
import array
import ctypes as c
import ctypes.util
import glob
import math
import os
import sys

FOLDERS = [os.path.join(root, "lib64") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
R_32F, COMPUTE_32F = 0, 68  # CUDA_R_32F, CUBLAS_COMPUTE_32F
ONE, ZERO = c.c_float(1), c.c_float(0)
SIDE = 64


class Missing(Exception):
    """The library is not installed."""


class Library:
    """A library whose functions raise when they return anything but 0."""

    def __init__(self, name):
        paths = [path for folder in FOLDERS for path in sorted(glob.glob(f"{folder}/lib{name}.so.*"))] or [ctypes.util.find_library(name)]
        if not paths[0]:
            raise Missing(f"lib{name}.so is not installed")
        self.library = c.CDLL(paths[0], mode=c.RTLD_GLOBAL)

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*words):
            status = function(*words)
            if status:
                raise RuntimeError(f"{name} returned {status}")
        return call

    def make(self, name, *words):
        """The handle that a function makes whose first parameter takes it."""
        handle = c.c_void_p()
        getattr(self, name)(c.byref(handle), *words)
        return handle


class Device:
    """Memory and a stream, through the runtime."""

    def __init__(self):
        self.runtime = Library("cudart")
        name = c.create_string_buffer(200)
        driver = Library.__new__(Library)
        driver.library = c.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGetName(name, 200, 0)
        self.computes = not name.value.startswith(b"softgpu")
        self.stream = self.runtime.make("cudaStreamCreate")

    def floats(self, values):
        """A copy on the device."""
        values = array.array("f", values)
        memory = self.space(4 * len(values))
        self.runtime.cudaMemcpy(memory, (c.c_float * len(values)).from_buffer(values), c.c_size_t(4 * len(values)), 1)
        return memory

    def integers(self, values):
        memory = self.space(4 * len(values))
        self.runtime.cudaMemcpy(memory, (c.c_int * len(values))(*values), c.c_size_t(4 * len(values)), 1)
        return memory

    def space(self, size):
        memory = c.c_void_p()
        self.runtime.cudaMalloc(c.byref(memory), c.c_size_t(max(size, 4)))
        return memory

    def read(self, memory, count):
        values = (c.c_float * count)()
        self.runtime.cudaStreamSynchronize(self.stream)
        self.runtime.cudaMemcpy(values, memory, c.c_size_t(4 * count), 2)
        return list(values)

    def expect(self, memory, wanted, tolerance=1e-4):
        got = self.read(memory, len(wanted))
        if self.computes:
            for n, (have, want) in enumerate(zip(got, wanted)):
                assert abs(have - want) <= tolerance * max(1, abs(want)), f"{n}: {have}, expected {want}"


def cublas(device):
    blas = Library("cublas")
    handle = blas.make("cublasCreate_v2")
    version = c.c_int()
    blas.cublasGetVersion_v2(handle, c.byref(version))
    assert version.value > 11000
    workspace = device.space(4 << 20)
    blas.cublasSetStream_v2(handle, device.stream)
    blas.cublasSetWorkspace_v2(handle, workspace, c.c_size_t(4 << 20))
    x, y = device.floats([1] * 1000), device.floats(range(1000))
    blas.cublasSaxpy_v2(handle, 1000, c.byref(c.c_float(2)), x, 1, y, 1)
    device.expect(y, [n + 2 for n in range(1000)])
    result = c.c_float(-1)
    blas.cublasSdot_v2(handle, 1000, x, 1, x, 1, c.byref(result))
    assert result.value == 1000 or not device.computes
    a, out = device.floats([0.5] * SIDE * SIDE), device.floats([0] * SIDE * SIDE)
    blas.cublasSgemm_v2(handle, 0, 1, SIDE, SIDE, SIDE, c.byref(ONE), a, SIDE, a, SIDE, c.byref(ZERO), out, SIDE)
    device.expect(out, [SIDE / 4] * SIDE * SIDE)
    blas.cublasSgemmStridedBatched(handle, 0, 0, 8, 8, 8, c.byref(ONE), a, 8, c.c_longlong(64), a, 8, c.c_longlong(64), c.byref(ZERO), out, 8, c.c_longlong(64), 4)
    device.expect(out, [2] * 256)
    blas.cublasDestroy_v2(handle)


def cublasLt(device):
    lt = Library("cublasLt")
    handle = lt.make("cublasLtCreate")
    operation = lt.make("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
    layout = lt.make("cublasLtMatrixLayoutCreate", R_32F, c.c_uint64(SIDE), c.c_uint64(SIDE), c.c_int64(SIDE))
    preference = lt.make("cublasLtMatmulPreferenceCreate")
    found, count = c.create_string_buffer(96 * 4), c.c_int()
    lt.cublasLtMatmulAlgoGetHeuristic(handle, operation, layout, layout, layout, layout, preference, 1, found, c.byref(count))
    assert count.value == 1
    a, out = device.floats([0.5] * SIDE * SIDE), device.floats([0] * SIDE * SIDE)
    lt.cublasLtMatmul(handle, operation, c.byref(ONE), a, layout, a, layout, c.byref(ZERO), out, layout, out, layout, found, None, c.c_size_t(0), device.stream)
    device.expect(out, [SIDE / 4] * SIDE * SIDE)
    lt.cublasLtMatmulPreferenceDestroy(preference)
    lt.cublasLtMatrixLayoutDestroy(layout)
    lt.cublasLtMatmulDescDestroy(operation)
    lt.cublasLtDestroy(handle)


def cufft(device):
    fft = Library("cufft")
    count = 256
    for kind, batch in ((0x29, 1), (0x29, 8)):  # CUFFT_C2C
        plan, size = c.c_int(), c.c_size_t()
        fft.cufftCreate(c.byref(plan))
        fft.cufftMakePlan1d(plan, count, kind, batch, c.byref(size))
        fft.cufftSetStream(plan, device.stream)
        values = device.floats([1, 0] * count * batch)
        fft.cufftExecC2C(plan, values, values, -1)
        device.expect(values, ([count, 0] + [0, 0] * (count - 1)) * batch)
        fft.cufftDestroy(plan)


def curand(device):
    rand = Library("curand")
    for kind in (100, 121, 141, 161):  # XORWOW, MRG32K3A, MTGP32, PHILOX4_32_10
        generator = rand.make("curandCreateGenerator", kind)
        rand.curandSetPseudoRandomGeneratorSeed(generator, c.c_ulonglong(7))
        rand.curandSetStream(generator, device.stream)
        values = device.floats([0] * 10_000)
        rand.curandGenerateUniform(generator, values, c.c_size_t(10_000))
        got = device.read(values, 10_000)
        assert not device.computes or (0.48 < sum(got) / 10_000 < 0.52 and 0 < min(got) and max(got) <= 1)
        rand.curandGenerateNormal(generator, values, c.c_size_t(10_000), c.c_float(0), c.c_float(1))
        rand.curandDestroyGenerator(generator)


def cusolver(device):
    solver = Library("cusolver")
    handle = solver.make("cusolverDnCreate")
    solver.cusolverDnSetStream(handle, device.stream)
    count = 16
    matrix = device.floats([4 if row == column else 0 for row in range(count) for column in range(count)])
    size, info, pivots = c.c_int(), device.space(4), device.space(4 * count)
    solver.cusolverDnSgetrf_bufferSize(handle, count, count, matrix, count, c.byref(size))
    workspace = device.space(4 * size.value)
    solver.cusolverDnSgetrf(handle, count, count, matrix, count, workspace, pivots, info)
    vector = device.floats([8] * count)
    solver.cusolverDnSgetrs(handle, 0, count, 1, matrix, count, pivots, vector, count, info)
    device.expect(vector, [2] * count)
    solver.cusolverDnDestroy(handle)


def cusparse(device):
    sparse = Library("cusparse")
    handle = sparse.make("cusparseCreate")
    sparse.cusparseSetStream(handle, device.stream)
    count = 100
    rows, columns = device.integers(range(count + 1)), device.integers(range(count))
    values, x, y = device.floats([3] * count), device.floats(range(count)), device.floats([0] * count)
    matrix = sparse.make("cusparseCreateCsr", c.c_int64(count), c.c_int64(count), c.c_int64(count), rows, columns, values, 2, 2, 0, R_32F)
    left, right = (sparse.make("cusparseCreateDnVec", c.c_int64(count), vector, R_32F) for vector in (x, y))
    size = c.c_size_t()
    sparse.cusparseSpMV_bufferSize(handle, 0, c.byref(ONE), matrix, left, c.byref(ZERO), right, R_32F, 0, c.byref(size))
    sparse.cusparseSpMV(handle, 0, c.byref(ONE), matrix, left, c.byref(ZERO), right, R_32F, 0, device.space(size.value))
    device.expect(y, [3 * n for n in range(count)])
    sparse.cusparseDestroyDnVec(left)
    sparse.cusparseDestroyDnVec(right)
    sparse.cusparseDestroySpMat(matrix)
    sparse.cusparseDestroy(handle)


def cudnn(device):
    dnn = Library("cudnn")
    handle = dnn.make("cudnnCreate")
    dnn.cudnnSetStream(handle, device.stream)
    tensor = dnn.make("cudnnCreateTensorDescriptor")
    dnn.cudnnSetTensor4dDescriptor(tensor, 0, 0, 1, 4, 8, 8)
    x, y = device.floats([n - 128 for n in range(256)]), device.floats([0] * 256)
    activation = dnn.make("cudnnCreateActivationDescriptor")
    dnn.cudnnSetActivationDescriptor(activation, 1, 0, c.c_double(0))  # ReLU
    dnn.cudnnActivationForward(handle, activation, c.byref(ONE), tensor, x, c.byref(ZERO), tensor, y)
    device.expect(y, [max(0, n - 128) for n in range(256)])
    dnn.cudnnSoftmaxForward(handle, 1, 0, c.byref(ONE), tensor, x, c.byref(ZERO), tensor, y)
    weights, convolution = dnn.make("cudnnCreateFilterDescriptor"), dnn.make("cudnnCreateConvolutionDescriptor")
    dnn.cudnnSetFilter4dDescriptor(weights, 0, 0, 4, 4, 1, 1)
    dnn.cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, 1, 0)
    size = c.c_size_t()
    dnn.cudnnGetConvolutionForwardWorkspaceSize(handle, tensor, weights, convolution, tensor, 0, c.byref(size))
    identity = device.floats([float(row == column) for row in range(4) for column in range(4)])
    dnn.cudnnConvolutionForward(handle, c.byref(ONE), tensor, x, weights, identity, convolution, 0, device.space(size.value), size, c.byref(ZERO), tensor, y)
    device.expect(y, [n - 128 for n in range(256)])
    dnn.cudnnDestroyConvolutionDescriptor(convolution)
    dnn.cudnnDestroyFilterDescriptor(weights)
    dnn.cudnnDestroyActivationDescriptor(activation)
    dnn.cudnnDestroyTensorDescriptor(tensor)
    dnn.cudnnDestroy(handle)


def nccl(device):
    class UniqueId(c.Structure):
        _fields_ = [("bytes", c.c_char * 128)]

    collectives = Library("nccl")
    name = UniqueId()
    collectives.ncclGetUniqueId(c.byref(name))
    communicator = collectives.make("ncclCommInitRank", 1, name, 0)
    values, out = device.floats(range(100)), device.floats([0] * 100)
    collectives.ncclAllReduce(values, out, c.c_size_t(100), 7, 0, communicator, device.stream)  # of floats, the sum
    device.expect(out, list(range(100)))
    collectives.ncclCommFinalize(communicator)
    collectives.ncclCommDestroy(communicator)


def nvrtc(device):
    compiler = Library("nvrtc")
    source = b'extern "C" __global__ void f(float* v, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] = sqrtf(i); }'
    program = compiler.make("nvrtcCreateProgram", source, b"f.cu", 0, None, None)
    options = (c.c_char_p * 1)(b"--gpu-architecture=compute_75")
    compiler.nvrtcCompileProgram(program, 1, options)
    size = c.c_size_t()
    compiler.nvrtcGetPTXSize(program, c.byref(size))
    ptx = c.create_string_buffer(size.value)
    compiler.nvrtcGetPTX(program, ptx)
    compiler.nvrtcDestroyProgram(c.byref(program))
    library = device.runtime.make("cudaLibraryLoadData", ptx, None, None, 0, None, None, 0)
    kernel = c.c_void_p()
    device.runtime.cudaLibraryGetKernel(c.byref(kernel), library, b"f")

    class Dim(c.Structure):
        _fields_ = [("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint)]

    values, count = device.floats([0] * 1000), c.c_int(1000)
    words = (c.c_void_p * 2)(c.addressof(values), c.addressof(count))
    device.runtime.cudaLaunchKernel(kernel, Dim(8, 1, 1), Dim(128, 1, 1), words, c.c_size_t(0), device.stream)
    device.computes = True  # it is PTX
    device.expect(values, [math.sqrt(n) for n in range(1000)])


def main():
    try:
        device = Device()
        {name: part for name, part in globals().items() if callable(part)}[sys.argv[1]](device)
    except Missing as missing:
        print(f"skipped: {missing}")
        return 77
    device.runtime.cudaDeviceSynchronize()
    print(f"{sys.argv[1]} works" + ("" if device.computes else "; its kernels were skipped"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
