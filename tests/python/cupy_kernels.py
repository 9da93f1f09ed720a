"""Tests custom CuPy kernels, and CuPy's streams, graphs and memory, against NumPy."""
import ctypes
import threading
import unittest

import cupy as cp
import numpy as np
from cupyx import jit

import cases

SOURCE = r"""
extern "C" {
__constant__ float factors[4];
__device__ int launches;

__global__ void scale(float* values, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= factors[i % 4];
  if (i == 0) atomicAdd(&launches, 1);
}

__global__ void reverse(const double* from, double* to) {
  extern __shared__ double kept[];
  kept[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}
}
template <typename T, int N> __global__ void power(T* values, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  T result = 1;
  for (int n = 0; n < N; ++n) result *= values[i];
  values[i] = result;
}
"""


class Kernels(unittest.TestCase):
    def test_elementwise(self):
        kernel = cp.ElementwiseKernel("T x, T y, raw T table", "T z", "z = x * x + y + table[i % 4]", "squares")
        for dtype in (np.int32, np.float32, np.float64):
            a, b, table = np.arange(100).astype(dtype), np.arange(100, 200).astype(dtype), np.arange(4).astype(dtype)
            result = kernel(cp.asarray(a), cp.asarray(b), cp.asarray(table))
            np.testing.assert_array_equal(cp.asnumpy(result), a * a + b + table[np.arange(100) % 4])

    def test_reduction(self):
        norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
        values = np.random.default_rng(1).random((40, 300))
        np.testing.assert_allclose(cp.asnumpy(norm(cp.asarray(values), axis=1)), np.linalg.norm(values, axis=1), rtol=1e-12)

    def test_raw_kernel(self):
        add = cp.RawKernel(r"""
            extern "C" __global__ void add(const float* a, const float* b, float* c, unsigned long long count, float more) {
              for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
                c[i] = a[i] + b[i] + more;
            }""", "add")
        a, b = (np.random.default_rng(seed).random(5000).astype(np.float32) for seed in (1, 2))
        c = cp.zeros(5000, np.float32)
        add((7,), (128,), (cp.asarray(a), cp.asarray(b), c, np.uint64(5000), np.float32(0.5)))
        np.testing.assert_array_equal(cp.asnumpy(c), a + b + np.float32(0.5))
        self.assertGreaterEqual(add.max_threads_per_block, 128)
        self.assertGreaterEqual(add.num_regs, 0)

    def test_raw_module(self):
        module = cp.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=("power<float, 3>", "power<int, 2>"))
        scale, reverse = module.get_function("scale"), module.get_function("reverse")
        factors = cp.ndarray((4,), np.float32, module.get_global("factors"))
        factors[:] = cp.asarray([1, 2, 3, 4], np.float32)
        values = cp.ones(1000, np.float32)
        for _ in range(2):
            scale((8,), (128,), (values, np.int32(1000)))
        np.testing.assert_array_equal(cp.asnumpy(values), np.tile([1, 4, 9, 16], 250))
        self.assertEqual(int(cp.ndarray((1,), np.int32, module.get_global("launches"))[0]), 2)

        numbers = cp.arange(256, dtype=np.float64)
        turned = cp.zeros_like(numbers)
        reverse((4,), (64,), (numbers, turned), shared_mem=64 * 8)
        np.testing.assert_array_equal(cp.asnumpy(turned), np.arange(256.0).reshape(4, 64)[:, ::-1].ravel())

        for name, dtype, exponent in (("power<float, 3>", np.float32, 3), ("power<int, 2>", np.int32, 2)):
            values = cp.arange(50, dtype=dtype)
            module.get_function(name)((1,), (64,), (values, np.int32(50)))
            np.testing.assert_array_equal(cp.asnumpy(values), np.arange(50).astype(dtype) ** exponent)

    def test_large_shared_memory(self):
        kernel = cp.RawKernel(r"""
            extern "C" __global__ void far(int* result) {
              extern __shared__ int kept[];
              for (int i = threadIdx.x; i < 16000; i += blockDim.x) kept[i] = i;
              __syncthreads();
              if (threadIdx.x == 0) *result = kept[15999] + kept[1];
            }""", "far")
        kernel.max_dynamic_shared_size_bytes = 64_000
        result = cp.zeros(1, np.int32)
        kernel((1,), (64,), (result,), shared_mem=64_000)
        self.assertEqual(int(result[0]), 16000)

    def test_a_mistake_in_a_kernel_is_told(self):
        with self.assertRaisesRegex(cp.cuda.compiler.CompileException, "nothing_of_this_name"):
            cp.RawKernel('extern "C" __global__ void f(int* p) { *p = nothing_of_this_name; }', "f").compile()
        with self.assertRaises(cp.cuda.driver.CUDADriverError):
            cp.RawModule(code='extern "C" __global__ void f() {}').get_function("g")

    def test_cooperative_launch(self):
        kernel = cp.RawKernel(r"""
            #include <cooperative_groups.h>
            extern "C" __global__ void steps(int* values) {
              auto grid = cooperative_groups::this_grid();
              int i = grid.thread_rank(), count = grid.size();
              for (int n = 0; n < 5; ++n) {
                int next = values[(i + 1) % count];
                grid.sync();
                values[i] = next + 1;
                grid.sync();
              }
            }""", "steps", enable_cooperative_groups=True)
        try:
            kernel.compile()
        except cp.cuda.compiler.CompileException as failure:
            if "cooperative_groups.h" not in str(failure):
                raise
            self.skipTest("needs the headers of the CUDA toolkit")
        values = cp.arange(128, dtype=np.int32)
        kernel((2,), (64,), (values,))
        np.testing.assert_array_equal(cp.asnumpy(values), np.roll(np.arange(128), -5) + 5)

    def test_python_kernels(self):
        @jit.rawkernel()
        def total(values, sums, count):
            kept = jit.shared_memory(np.float32, 128)
            i, lane = jit.grid(1), jit.threadIdx.x
            kept[lane] = values[i] if i < count else np.float32(0)
            jit.syncthreads()
            for step in range(7):
                half = np.uint32(64) >> np.uint32(step)
                if lane < half:
                    kept[lane] += kept[lane + half]
                jit.syncthreads()
            if lane == 0:
                jit.atomic_add(sums, 0, kept[0])

        values = np.random.default_rng(2).random(1000).astype(np.float32)
        sums = cp.zeros(1, np.float32)
        total((8,), (128,), (cp.asarray(values), sums, np.uint32(1000)))
        np.testing.assert_allclose(cp.asnumpy(sums), values.sum(), rtol=1e-5)


class Streams(unittest.TestCase):
    def test_streams_and_events(self):
        one, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream()
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        with one:
            values = cp.zeros(100_000)
            begin.record()
            for _ in range(10):
                values += 1
            end.record()
        other.wait_event(end)
        with other:
            values *= 2
        other.synchronize()
        self.assertTrue(one.done)
        self.assertGreater(cp.cuda.get_elapsed_time(begin, end), 0)
        self.assertTrue((cp.asnumpy(values) == 20).all())

    def test_asynchronous_copies(self):
        stream = cp.cuda.Stream(non_blocking=True)
        count = 300_000
        pinned = cp.cuda.alloc_pinned_memory(count * 8)
        there = np.frombuffer(pinned, np.float64, count)
        there[:] = np.arange(count)
        values = cp.empty(count)
        values.set(there, stream=stream)
        with stream:
            values += 1
        back = values.get(stream=stream, out=np.frombuffer(cp.cuda.alloc_pinned_memory(count * 8), np.float64, count), blocking=False)
        stream.synchronize()
        np.testing.assert_array_equal(back, np.arange(count) + 1)

    def test_callbacks(self):
        stream, called = cp.cuda.Stream(), threading.Event()
        stream.launch_host_func(lambda event: event.set(), called)
        self.assertTrue(called.wait(30))

    def test_graph(self):
        stream = cp.cuda.Stream(non_blocking=True)
        kernel = cp.RawKernel('extern "C" __global__ void f(int* v) { if (threadIdx.x == 0) atomicAdd(v, blockDim.x); }', "f")
        kernel.compile()
        values = cp.zeros(1, np.int32)
        with stream:
            stream.begin_capture()
            kernel((4,), (32,), (values,))
            kernel((1,), (8,), (values,))
            graph = stream.end_capture()
        graph.upload(stream)
        for _ in range(5):
            graph.launch(stream)
        stream.synchronize()
        self.assertEqual(int(values[0]), 5 * (4 * 32 + 8))

    def test_threads(self):
        failures = []

        def work(n):
            try:
                with cp.cuda.Stream(non_blocking=True) as stream:
                    values = cp.full(10_000, n)
                    for _ in range(20):
                        values += 1
                    if int(values.sum()) != 10_000 * (n + 20):
                        failures.append(n)
                    stream.synchronize()
            except Exception as failure:  # checked below: an exception in a thread does not fail the test
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class Memory(unittest.TestCase):
    def test_the_device(self):
        device = cp.cuda.Device()
        free, total = device.mem_info
        self.assertLessEqual(free, total)
        properties = cp.cuda.runtime.getDeviceProperties(device.id)
        self.assertEqual(properties["warpSize"], 32)
        self.assertEqual(f"{properties['major']}{properties['minor']}", device.compute_capability)
        self.assertEqual(cp.cuda.runtime.deviceGetByPCIBusId(device.pci_bus_id), device.id)

    def test_pool(self):
        pool = cp.cuda.MemoryPool()
        with cp.cuda.using_allocator(pool.malloc):
            arrays = [cp.zeros(1 << 20, np.uint8) for _ in range(4)]
            self.assertEqual(pool.used_bytes(), 4 << 20)
            del arrays
            self.assertEqual((pool.used_bytes(), pool.total_bytes() >= 4 << 20), (0, True))
            pool.free_all_blocks()
            self.assertEqual(pool.total_bytes(), 0)

    def test_pool_of_the_driver(self):
        pool = cp.cuda.MemoryAsyncPool()
        with cp.cuda.using_allocator(pool.malloc):
            values = cp.arange(100_000)
            self.assertEqual(int(values.sum()), 100_000 * 99_999 // 2)
            self.assertGreaterEqual(pool.used_bytes(), 800_000)
            self.assertGreaterEqual(pool.total_bytes(), pool.used_bytes())
            del values
            cp.cuda.get_current_stream().synchronize()
            pool.free_all_blocks()

    def test_limit(self):
        pool = cp.cuda.MemoryPool()
        pool.set_limit(size=1 << 20)
        with cp.cuda.using_allocator(pool.malloc), self.assertRaises(cp.cuda.memory.OutOfMemoryError):
            cp.zeros(2 << 20, np.uint8)

    def test_too_much_memory(self):
        with self.assertRaises(cp.cuda.memory.OutOfMemoryError):
            cp.zeros(2 * cp.cuda.Device().mem_info[1], np.uint8)
        self.assertEqual(int(cp.ones(10).sum()), 10)

    def test_managed_memory(self):
        values = cp.ndarray(1000, np.float64, cp.cuda.malloc_managed(8000))
        values[:] = 3
        self.assertEqual(float(values.sum()), 3000)
        cp.cuda.get_current_stream().synchronize()
        there = np.ctypeslib.as_array(ctypes.cast(values.data.ptr, ctypes.POINTER(ctypes.c_double)), (1000,))
        np.testing.assert_array_equal(there, 3)
        there[:] = np.arange(1000)  # managed memory is also accessible to the program
        self.assertEqual(float(values.sum()), 499_500)

    def test_with_numba(self):
        try:
            from numba import cuda
        except ImportError:
            self.skipTest("needs Numba")

        @cuda.jit
        def double(values):
            i = cuda.grid(1)
            if i < values.size:
                values[i] *= 2

        values = cp.arange(100)
        double[1, 128](values)
        cuda.synchronize()
        np.testing.assert_array_equal(cp.asnumpy(values), np.arange(100) * 2)
        np.testing.assert_array_equal(cp.asnumpy(cp.asarray(cuda.to_device(np.arange(10)))), np.arange(10))


if __name__ == "__main__":
    cases.main()
