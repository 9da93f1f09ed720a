"""NVRTC: compiles programs with headers, templates and errors; loads, links and runs the results."""
import ctypes as c
import math

from support import Library, Missing

COMPILATION = 6
SOURCE = b'''
#include "twice.h"
extern "C" __constant__ float offset;
extern "C" __global__ void f(float* v, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] = sqrtf(i) + offset; }
template <typename T> __global__ void g(T* v) { v[threadIdx.x] = twice(static_cast<T>(threadIdx.x)); }
'''
HEADER = b"template <typename T> __device__ T twice(T value) { return value + value; }"


class Dim(c.Structure):
    _fields_ = [("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint)]


def tour(device):
    compiler = Library("nvrtc")
    compiler.library.nvrtcGetErrorString.restype = c.c_char_p
    assert compiler.library.nvrtcGetErrorString(COMPILATION) == b"NVRTC_ERROR_COMPILATION"
    count = compiler.ask(c.c_int, "nvrtcGetNumSupportedArchs")
    known = (c.c_int * count)()
    compiler.nvrtcGetSupportedArchs(known)
    oldest = min(known)
    device.computes = True  # NVRTC generates PTX, which softgpu executes
    ptx, name = compiled(compiler, [f"--gpu-architecture=compute_{oldest}".encode()])
    run(device, ptx, name)
    faulty(compiler)
    linked(device, ptx, name)
    code, _ = compiled(compiler, [f"--gpu-architecture=sm_{oldest}".encode()], "CUBIN")
    assert code[:4] == b"\x7fELF"
    intermediate, _ = compiled(compiler, [b"-dlto", f"--gpu-architecture=compute_{oldest}".encode()], "LTOIR")
    joined(intermediate, oldest)


def compiled(compiler, options, kind="PTX"):
    """Returns the code, and the mangled name of g<float>."""
    headers, names = (c.c_char_p * 1)(HEADER), (c.c_char_p * 1)(b"twice.h")
    program = compiler.make("nvrtcCreateProgram", SOURCE, b"f.cu", 1, headers, names)
    compiler.nvrtcAddNameExpression(program, b"g<float>")
    compiler.nvrtcCompileProgram(program, len(options), (c.c_char_p * len(options))(*options))
    name = compiler.ask(c.c_char_p, "nvrtcGetLoweredName", program, b"g<float>")
    size = compiler.ask(c.c_size_t, f"nvrtcGet{kind}Size", program)
    code = c.create_string_buffer(size)
    getattr(compiler, f"nvrtcGet{kind}")(program, code)
    compiler.nvrtcDestroyProgram(c.byref(program))
    return code.raw, name


def faulty(compiler):
    program = compiler.make("nvrtcCreateProgram", b"__global__ void f() { nothing(); }", b"f.cu", 0, None, None)
    compiler.refuses(COMPILATION, "nvrtcCompileProgram", program, 0, None)
    log = c.create_string_buffer(compiler.ask(c.c_size_t, "nvrtcGetProgramLogSize", program))
    compiler.nvrtcGetProgramLog(program, log)
    assert b"nothing" in log.value
    compiler.nvrtcDestroyProgram(c.byref(program))


def run(device, ptx, name):
    runtime = device.runtime
    library = runtime.make("cudaLibraryLoadData", ptx, None, None, 0, None, None, 0)
    offset, size = c.c_void_p(), c.c_size_t()
    runtime.cudaLibraryGetGlobal(c.byref(offset), c.byref(size), library, b"offset")
    assert size.value == 4
    runtime.cudaMemcpy(offset, c.byref(c.c_float(0.5)), c.c_size_t(4), 1)
    kernels = [c.c_void_p(), c.c_void_p()]
    runtime.cudaLibraryGetKernel(c.byref(kernels[0]), library, b"f")
    runtime.cudaLibraryGetKernel(c.byref(kernels[1]), library, name)
    values, count = device.floats([0] * 1000), c.c_int(1000)
    words = (c.c_void_p * 2)(c.addressof(values), c.addressof(count))
    runtime.cudaLaunchKernel(kernels[0], Dim(8, 1, 1), Dim(128, 1, 1), words, c.c_size_t(0), device.stream)
    device.expect(values, [math.sqrt(n) + 0.5 for n in range(1000)])
    device.captured(lambda: runtime.cudaLaunchKernel(kernels[1], Dim(1, 1, 1), Dim(100, 1, 1), words, c.c_size_t(0), device.stream))
    device.expect(values, [2 * n for n in range(100)])
    runtime.cudaLibraryUnload(library)


def linked(device, ptx, name):
    """Links with the driver and loads the image."""
    driver = device.driver
    state, image, size, module, kernel = c.c_void_p(), c.c_void_p(), c.c_size_t(), c.c_void_p(), c.c_void_p()
    driver.cuLinkCreate_v2(0, None, None, c.byref(state))
    driver.cuLinkAddData_v2(state, 1, ptx, c.c_size_t(len(ptx)), b"f.ptx", 0, None, None)
    driver.cuLinkComplete(state, c.byref(image), c.byref(size))
    assert size.value > 0
    driver.cuModuleLoadData(c.byref(module), image)
    driver.cuLinkDestroy(state)
    driver.cuModuleGetFunction(c.byref(kernel), module, name)
    values = device.floats([0] * 32)
    driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, device.stream, (c.c_void_p * 1)(c.addressof(values)), None)
    device.expect(values, [2 * n for n in range(32)])
    driver.cuModuleUnload(module)


def joined(intermediate, architecture):
    """Links with nvJitLink, which needs no driver."""
    try:
        linker = Library("nvJitLink")
    except Missing:
        return
    options = (c.c_char_p * 3)(f"-arch=sm_{architecture}".encode(), b"-lto", b"-ptx")
    handle = linker.make("nvJitLinkCreate", 3, options)
    linker.nvJitLinkAddData(handle, 3, intermediate, c.c_size_t(len(intermediate)), b"f")
    linker.nvJitLinkComplete(handle)
    size = linker.ask(c.c_size_t, "nvJitLinkGetLinkedPtxSize", handle)
    ptx = c.create_string_buffer(size)
    linker.nvJitLinkGetLinkedPtx(handle, ptx)
    assert b".entry f" in ptx.raw
    linker.nvJitLinkDestroy(c.byref(handle))
