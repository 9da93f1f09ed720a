"""The test suites of other projects: how to find, build and run their programs in a checkout. SUITES has a row for each.

Finding programs writes no files; built() does.
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess


class Program:
    """One program of a suite. `build` is a list of commands, or the reason why the program is left out. `prepare` is a function
    that creates `folder` before the build."""

    def __init__(self, name, command, folder, build=(), settings=None, prepare=None):
        self.name, self.command, self.folder, self.build, self.settings, self.prepare = name, command, folder, build, settings or {}, prepare


# --- NVIDIA's cuda-samples: each sample is compiled by one nvcc command, with PTX only ---

NEEDS = {"OpenGL": "needs a display", "GLUT": "needs a display", "EGL": "needs a display", "Vulkan": "needs a display", "MPI": "needs MPI"}
LIBRARIES = "cublas cublasLt cufft curand cusolver cusparse nvrtc nvJitLink nvjpeg nppc nppial nppicc nppidei nppif nppig nppim nppist nppisu nppitc cudadevrt".split()


# Smaller problems, because softgpu runs on the CPU: options if a sample has them, otherwise changes to a copy of its source
# (pattern, replacement).
REDUCED = {
    "matrixMul": ["-wA=128", "-hA=128", "-wB=128", "-hB=128"],
    "eigenvalues": ["--matrix-size=256", "--iters-timing=1"],
    "radixSortThrust": ["-n=65536", "-iterations=2"],
    "globalToShmemAsyncCopy": ["-wA=256", "-hA=256", "-wB=256", "-hB=256"],
    "batchCUBLAS": ["-m32", "-n32", "-k32"],
    "FDTD3d": ["--dimx=96", "--dimy=96", "--dimz=96", "--timesteps=2"],
    "UnifiedMemoryPerf": ["-kernel-iterations=1"],
}
TILES = [(r"#define ([MNK])_TILES \d+", r"#define \1_TILES 32")]
SMALLER = {
    "simplePitchLinearTexture": [(r"NUM_REPS 100", "NUM_REPS 2")],
    "convolutionTexture": [(r"imageW += 3072", "imageW = 384"), (r"imageH += 3072 / 2", "imageH = 192"), (r"iterations = 10", "iterations = 1")],
    "interval": [(r"NUM_RUNS \(100\)", "NUM_RUNS (1)"), (r"GRID_SIZE += 1024", "GRID_SIZE = 16")],
    "scan": [(r"iCycles = 100", "iCycles = 1")],
    "bf16TensorCoreGemm": TILES,
    "cudaTensorCoreGemm": TILES,
    "dmmaTensorCoreGemm": TILES,
    "immaTensorCoreGemm": TILES,
    "tf32TensorCoreGemm": TILES,
    "jacobiCudaGraphs": [(r"N_ROWS 512", "N_ROWS 128")],
    "conjugateGradientPrecond": [(r"M = N = 16384", "M = N = 1024")],
    "BlackScholes": [(r"NUM_ITERATIONS = 512", "NUM_ITERATIONS = 16")],
    "UnifiedMemoryPerf": [(r"maxSampleSizeInMb = 64", "maxSampleSizeInMb = 1")],
    "graphMemoryFootprint": [(r"bytes  = 64 \* 1024 \* 1024", "bytes  = 1024 * 1024")],
}


def make_smaller(source, copy, changes):
    """Copies the folder of a sample and reduces its problem size."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    texts = {path: path.read_text(errors="replace") for path in copy.iterdir() if path.suffix in (".cu", ".cpp", ".h", ".cuh")}
    for pattern, replacement in changes:
        found = [path for path, text in texts.items() if re.search(pattern, text)]
        if not found:
            raise SystemExit(f"{source}: no match for '{pattern}', which reduces the sample's problem size")
        for path in found:
            texts[path] = re.sub(pattern, replacement, texts[path])
    for path, text in texts.items():
        path.write_text(text)


def compile_sample(source, checkout, target):
    """Returns the commands to run in the sample's folder or a copy of it, or the reason why the sample is left out."""
    cmake = (source / "CMakeLists.txt").read_text(errors="replace")
    for package, reason in NEEDS.items():
        if re.search(rf"find_package\({package}\b", cmake):
            return reason
    if re.search(r"-cubin|-ptx|\.fatbin|add_library", cmake):
        return "has parts that are built by rules of its own"
    named = re.search(r"add_executable\(\s*\S+\s+([^)]*)\)", cmake)
    files = named[1].split() if named else []
    if not files or not all((source / file).exists() for file in files):
        return "its CMakeLists.txt names no program, or files that are not there"
    words = ["nvcc", "-std=c++17", "--extended-lambda", "-arch=compute_90", "-code=compute_90", "-Wno-deprecated-gpu-targets",
             "-I", str(checkout / "Common"), "-I", "inc", "-o", str(target), *files]
    if "CUDA_SEPARABLE_COMPILATION ON" in cmake:
        words.append("-rdc=true")
    named = [name for name in LIBRARIES if re.search(rf"\b(CUDA::)?{name}\b|{name}_LIBRARY", cmake)]
    words += [f"-l{name}" for name in named]
    if "cusolver" in named:
        words += ["-lcusparse", "-lcublas"]  # dependencies of CMake's CUDA::cusolver
    if "cuda_driver" in cmake or "CUDA_DRIVER" in cmake:
        words.append("-lcuda")
    if "NVVM_LIB" in cmake:
        folder = pathlib.Path(shutil.which("nvcc")).resolve().parent.parent / "lib"
        words += ["-L", str(folder), "-Xlinker", f"-rpath={folder}", "-lnvvm", "-lcuda"]
    if "OpenMP" in cmake:
        words += ["-Xcompiler", "-fopenmp"]
    return [words]


def cuda_samples(checkout, scratch, _python):
    for cmake in sorted(checkout.glob("Samples/*/*/CMakeLists.txt")):
        name = f"{cmake.parent.parent.name}.{cmake.parent.name}"
        source, target = cmake.parent, scratch / name
        folder, prepare = source, None
        if changes := SMALLER.get(source.name):
            folder = scratch / "smaller" / source.name
            prepare = functools.partial(make_smaller, source, folder, changes)
        yield Program(name, [str(target), *REDUCED.get(source.name, [])], folder, compile_sample(source, checkout, target), prepare=prepare)


# --- Suites in Python: a program is a module of tests, run with the given interpreter ---
# At SIGINT, pytest and unittest with --catch print a summary of the tests so far.

def modules(pattern, runner, settings=None, installed=True):
    """`installed`: the tests belong to the installed package or need it, so they must not run in the checkout, which would hide it."""
    def find(checkout, scratch, python):
        for path in sorted(checkout.glob(pattern)):
            relative = path.relative_to(checkout).with_suffix("")
            yield Program(".".join(relative.parts), [python, *runner(path, relative)], scratch if installed else checkout, settings=settings)
    return find


def numba_module(_path, relative):
    name = ".".join(relative.parts)
    return ["-m", "numba.runtests", name[name.index("numba.cuda."):]]


# --- ggml: one program for each operator, compared with its CPU back end ---

OPERATORS = ("ADD MUL DIV SCALE CPY CONT NORM RMS_NORM SOFT_MAX ROPE GET_ROWS SUM_ROWS ARGSORT IM2COL CONCAT UPSCALE PAD CLAMP SIN SQR "
             "MUL_MAT MUL_MAT_ID FLASH_ATTN_EXT SSM_CONV CROSS_ENTROPY_LOSS").split()
# Parameter patterns that select some cases of operators whose cases take many minutes on a CPU.
OPERATOR_CASES = {"FLASH_ATTN_EXT": "kv=113,nb=1,", "MUL_MAT": "k=(64|128|1057),", "MUL_MAT_ID": "n_mats=4,n_used=2,b=0,m=512,n=(1|4|17),"}


def ggml(checkout, scratch, _python):
    build = scratch / "build"
    make = [["cmake", "-S", str(checkout), "-B", str(build), "-DGGML_CUDA=ON", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=90-virtual",
             "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"],  # libcuda.so.1 need not be installed
            ["cmake", "--build", str(build), "-j", "2", "--target", "test-backend-ops"]]
    for operator in OPERATORS:
        cases = ["-p", OPERATOR_CASES[operator]] if operator in OPERATOR_CASES else []
        yield Program(operator, [str(build / "bin" / "test-backend-ops"), "test", "-b", "CUDA0", "-o", operator, *cases], checkout, make)


PTX = {"CUPY_COMPILE_WITH_PTX": "1", "CUPY_ACCELERATORS": ""}
# softgpu's settings. A device of compute capability 13.0 runs the newest PTX of CUDA's libraries; Warp's PTX is for 12.0 at
# most.
DEVICES = {
    "cuda-samples": {"SOFTGPU_COMPUTE_CAPABILITY": "13.0"},
    "cupy": {"SOFTGPU_COMPUTE_CAPABILITY": "13.0", "SOFTGPU_DEVICES": "6", "SOFTGPU_MEMORY": "8GiB"},
    "ggml": {"SOFTGPU_COMPUTE_CAPABILITY": "13.0"},
    "tinygrad": {"SOFTGPU_DEVICES": "6"},
    "warp": {"SOFTGPU_COMPUTE_CAPABILITY": "12.0"},
}
SUITES = {
    "cuda-samples": cuda_samples,
    "numba-cuda": modules("numba_cuda/numba/cuda/tests/cud[ad]*/test_*.py", numba_module),
    "cupy": modules("tests/cupy_tests/*/test_*.py", lambda path, _: ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)], PTX),
    "warp": modules("warp/tests/**/test_*.py", lambda _, relative: ["-m", ".".join(relative.parts), "--catch"], {"WARP_CACHE_PATH": "warp-cache", "GPUPOOL_DRIVER_VERSION": "13.4", "SOFTGPU_DRIVER_VERSION": "13.4"}),
    "tinygrad": modules("test/backend/test_*.py", lambda _, relative: ["-m", "unittest", "--catch", ".".join(relative.parts)], {"DEV": "CUDA"},
                        installed=False),
    "ggml": ggml,
}


def built(program, log, seconds):
    """Builds the program. Returns "" or the error."""
    if program.prepare:
        program.prepare()
    for words in program.build:
        with open(log, "a") as out:
            try:
                # The caller serializes builds, because several programs may share a target.
                status = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, cwd=program.folder).returncode
            except (subprocess.TimeoutExpired, OSError) as failure:
                return f"cannot be built: {failure}"[:200]
        if status:
            return f"cannot be built, see {log}"
    return ""


def checkout_of(folder, name):
    path = pathlib.Path(folder, name)
    return path.resolve() if path.is_dir() and os.listdir(path) else None
