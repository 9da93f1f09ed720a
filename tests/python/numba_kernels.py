"""Tests kernels compiled by Numba against NumPy."""
import math
import unittest
import warnings

import numpy as np
from numba import cuda, float32, float64, guvectorize, int32, vectorize
from numba.core.errors import NumbaPerformanceWarning
from numba.cuda import random as device_random

import cases

warnings.simplefilter("ignore", NumbaPerformanceWarning)
THREADS = 128
WIDTH = 32


def random(shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).random(shape).astype(dtype)


@cuda.jit
def add(a, b, result):
    i = cuda.grid(1)
    if i < result.size:
        result[i] = a[i] + b[i]


@cuda.jit(device=True)
def polynomial(x, degree):
    result = 0.0
    for power in range(degree, -1, -1):
        result = result * x + power
    return result


@cuda.jit(device=True, inline="always")
def divide(a, b):
    return a // b, a % b


class Kernels(unittest.TestCase):
    def test_vector_add(self):
        for count in (1, 127, 10_000):
            a, b = random(count), random(count, seed=2)
            result = np.zeros_like(a)
            add[(count + THREADS - 1) // THREADS, THREADS](a, b, result)
            np.testing.assert_array_equal(result, a + b)

    def test_one_kernel_of_many_types(self):
        for dtype in (np.int8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.complex64, np.complex128):
            a, b = (random(500, seed=seed) * 50 for seed in (1, 2))
            a, b = a.astype(dtype), b.astype(dtype)
            result = np.zeros_like(a)
            add[4, THREADS](a, b, result)
            np.testing.assert_array_equal(result, a + b)
        self.assertGreaterEqual(len(add.signatures), 8)

    def test_explicit_signatures(self):
        @cuda.jit(["void(float32[:], float32)", "void(float64[:], float64)", "void(int32[:], int32)"])
        def scale(values, factor):
            i = cuda.grid(1)
            if i < values.size:
                values[i] *= factor

        self.assertEqual(len(scale.signatures), 3)
        for dtype in (np.float32, np.float64, np.int32):
            values = np.arange(100).astype(dtype)
            scale[1, THREADS](values, dtype(3))
            np.testing.assert_array_equal(values, np.arange(100).astype(dtype) * 3)

    def test_reduction_in_shared_memory(self):
        @cuda.jit
        def total(values, sums):
            partial = cuda.shared.array(THREADS, float64)
            i, lane = cuda.grid(1), cuda.threadIdx.x
            partial[lane] = values[i] if i < values.size else 0.0
            cuda.syncthreads()
            half = THREADS // 2
            while half:
                if lane < half:
                    partial[lane] += partial[lane + half]
                cuda.syncthreads()
                half //= 2
            if lane == 0:
                sums[cuda.blockIdx.x] = partial[0]

        values = random(10_000, np.float64)
        sums = np.zeros(80)
        total[80, THREADS](values, sums)
        np.testing.assert_allclose(sums.sum(), values.sum(), rtol=1e-12)

    def test_dynamic_shared_memory(self):
        @cuda.jit
        def backwards(values):
            kept = cuda.shared.array(0, int32)
            i = cuda.threadIdx.x
            kept[i] = values[i]
            cuda.syncthreads()
            values[i] = kept[cuda.blockDim.x - 1 - i]

        values = np.arange(96, dtype=np.int32)
        backwards[1, 96, 0, 96 * 4](values)
        np.testing.assert_array_equal(values, np.arange(96)[::-1])

    def test_matrix_product_with_tiles(self):
        side = 16

        @cuda.jit
        def multiply(a, b, c):
            left, right = cuda.shared.array((side, side), float32), cuda.shared.array((side, side), float32)
            x, y = cuda.grid(2)
            tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
            result = float32(0)
            for tile in range(a.shape[1] // side):
                left[ty, tx] = a[y, tile * side + tx]
                right[ty, tx] = b[tile * side + ty, x]
                cuda.syncthreads()
                for k in range(side):
                    result += left[ty, k] * right[k, tx]
                cuda.syncthreads()
            c[y, x] = result

        a, b = random((48, 64)), random((64, 32), seed=2)
        c = np.zeros((48, 32), np.float32)
        multiply[(2, 3), (side, side)](a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)

    def test_atomics(self):
        @cuda.jit
        def count(values, histogram, extremes, total, firsts):
            i = cuda.grid(1)
            if i < values.size:
                bucket = values[i] % histogram.size
                cuda.atomic.add(histogram, bucket, 1)
                cuda.atomic.max(extremes, 0, values[i])
                cuda.atomic.min(extremes, 1, values[i])
                cuda.atomic.add(total, 0, 0.5)
                cuda.atomic.cas(firsts, bucket, -1, bucket)

        values = np.random.default_rng(3).integers(0, 1000, 5000, dtype=np.int32)
        histogram, extremes = np.zeros(16, np.int64), np.array([-1, 10_000], np.int32)
        total, firsts = np.zeros(1), np.full(16, -1, np.int32)
        count[40, THREADS](values, histogram, extremes, total, firsts)
        np.testing.assert_array_equal(histogram, np.bincount(values % 16, minlength=16))
        self.assertEqual(list(extremes), [values.max(), values.min()])
        self.assertEqual(total[0], 2500)
        np.testing.assert_array_equal(firsts, np.arange(16))

    def test_more_atomics(self):
        @cuda.jit
        def mix(values, float_result, exchanged):
            i = cuda.grid(1)
            cuda.atomic.sub(values, 0, 2)
            cuda.atomic.or_(values, 1, 1 << (i % 30))
            cuda.atomic.xor(values, 2, i)
            cuda.atomic.and_(values, 3, ~(1 << (i % 30)))
            cuda.atomic.inc(values, 4, 9)
            cuda.atomic.max(float_result, 0, float32(i) * float32(0.5))
            cuda.atomic.exch(exchanged, i, i * 2)

        values = np.array([1000, 0, 0, 0xFFFFFFFF, 0], np.uint32)
        maximum, exchanged = np.full(1, -1, np.float32), np.zeros(64, np.int64)
        mix[2, 32](values, maximum, exchanged)
        self.assertEqual([int(value) for value in values], [872, 2**30 - 1, 0, 0xC0000000, 4])
        self.assertEqual(maximum[0], 31.5)
        np.testing.assert_array_equal(exchanged, np.arange(64) * 2)

    def test_device_functions(self):
        @cuda.jit
        def evaluate(values, result, quotients):
            i = cuda.grid(1)
            if i < values.size:
                result[i] = polynomial(values[i], 5)
                quotient, rest = divide(i, 7)
                quotients[i] = quotient * 100 + rest

        values = random(300, np.float64)
        result, quotients = np.zeros(300), np.zeros(300, np.int64)
        evaluate[3, THREADS](values, result, quotients)
        np.testing.assert_allclose(result, np.polyval([5, 4, 3, 2, 1, 0], values), rtol=1e-12)
        i = np.arange(300)
        np.testing.assert_array_equal(quotients, i // 7 * 100 + i % 7)

    def test_mathematics(self):
        names = ("sin cos tan asin acos atan sinh cosh tanh exp expm1 log log1p log2 log10 sqrt fabs ceil floor erf "
                 "erfc gamma lgamma").split()
        functions = [getattr(math, name) for name in names]

        # One kernel with all functions, as source text, because Numba cannot compile a list of functions.
        lines = ["def apply(values, result):", "    i = cuda.grid(1)", "    if i < values.size:", "        x = values[i]"]
        lines += [f"        result[{n}, i] = math.{name}(x)" for n, name in enumerate(names)]
        scope = {"cuda": cuda, "math": math}
        exec("\n".join(lines), scope)
        apply = cuda.jit(scope["apply"])
        for dtype, tolerance in ((np.float32, 2e-5), (np.float64, 1e-12)):
            values = random(200, dtype) * dtype(0.9) + dtype(0.05)
            result = np.zeros((len(names), 200), dtype)
            apply[2, THREADS](values, result)
            for name, function, row in zip(names, functions, result):
                expected = [function(float(value)) for value in values]
                np.testing.assert_allclose(row, expected, rtol=tolerance, atol=tolerance, err_msg=name)

    def test_warp(self):
        @cuda.jit
        def warp(values, sums, votes, firsts):
            i, lane = cuda.grid(1), cuda.laneid
            value = values[i]
            step = 16
            while step:
                value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
                step //= 2
            if lane == 0:
                sums[i // WIDTH] = value
            ballot = cuda.ballot_sync(0xFFFFFFFF, values[i] % 3 == 0)
            if lane == 5:
                votes[i // WIDTH] = cuda.popc(ballot)
            firsts[i] = cuda.shfl_sync(0xFFFFFFFF, values[i], 0)

        values = np.random.default_rng(4).integers(0, 100, 128).astype(np.int32)
        sums, votes, firsts = np.zeros(4, np.int32), np.zeros(4, np.int32), np.zeros(128, np.int32)
        warp[2, 64](values, sums, votes, firsts)
        rows = values.reshape(4, WIDTH)
        np.testing.assert_array_equal(sums, rows.sum(axis=1))
        np.testing.assert_array_equal(votes, (rows % 3 == 0).sum(axis=1))
        np.testing.assert_array_equal(firsts, np.repeat(rows[:, 0], WIDTH))

    def test_bits(self):
        @cuda.jit
        def bits(values, result):
            i = cuda.grid(1)
            result[i, 0] = cuda.popc(values[i])
            result[i, 1] = cuda.clz(values[i])
            result[i, 2] = cuda.ffs(values[i])
            result[i, 3] = cuda.brev(values[i])

        values = np.random.default_rng(5).integers(1, 2**32, 64, dtype=np.uint32)
        result = np.zeros((64, 4), np.uint32)
        bits[1, 64](values, result)
        for value, row in zip(values, result):
            text = f"{value:032b}"
            self.assertEqual([int(x) for x in row],
                             [text.count("1"), text.index("1"), 32 - text.rindex("1"), int(text[::-1], 2)])

    def test_constant_and_local_arrays(self):
        table = np.arange(10, dtype=np.float32) ** 2

        @cuda.jit
        def look_up(result):
            squares = cuda.const.array_like(table)
            mine = cuda.local.array(10, float32)
            i = cuda.grid(1)
            for k in range(10):
                mine[k] = squares[(k + i) % 10]
            for k in range(10):
                result[i, k] = mine[9 - k]

        result = np.zeros((32, 10), np.float32)
        look_up[1, 32](result)
        expected = [[table[(9 - k + i) % 10] for k in range(10)] for i in range(32)]
        np.testing.assert_array_equal(result, expected)

    def test_records(self):
        particle = np.dtype([("position", np.float32, (3,)), ("mass", np.float64), ("kind", np.int16)], align=True)

        @cuda.jit
        def move(particles):
            i = cuda.grid(1)
            if i < particles.size and particles[i].kind == 1:
                for axis in range(3):
                    particles[i].position[axis] += axis
                particles[i].mass *= 2

        particles = np.zeros(20, particle)
        particles["mass"], particles["kind"] = np.arange(20), np.arange(20) % 2
        move[1, 32](particles)
        np.testing.assert_array_equal(particles["mass"], np.arange(20) * (1 + np.arange(20) % 2))
        np.testing.assert_array_equal(particles["position"][1::2], np.tile([0, 1, 2], (10, 1)))

    def test_grid_synchronisation(self):
        @cuda.jit
        def steps(matrix):
            column = cuda.grid(1)
            grid = cuda.cg.this_grid()
            for row in range(1, matrix.shape[0]):
                # Each row needs the complete row before it.
                matrix[row, column] = matrix[row - 1, matrix.shape[1] - column - 1] + 1
                grid.sync()

        matrix = np.zeros((8, 256), np.int32)
        matrix[0] = np.arange(256)
        steps[2, THREADS](matrix)
        expected = matrix[0]
        for _ in range(7):
            expected = expected[::-1] + 1
        np.testing.assert_array_equal(matrix[7], expected)

    def test_vectorize(self):
        @vectorize([float32(float32, float32), float64(float64, float64)], target="cuda")
        def hypotenuse(a, b):
            return math.sqrt(a * a + b * b)

        for dtype in (np.float32, np.float64):
            a, b = random((40, 50), dtype), random((40, 50), dtype, 2)
            np.testing.assert_allclose(hypotenuse(a, b), np.hypot(a, b), rtol=1e-6)
        np.testing.assert_allclose(hypotenuse(a, b[:1]), np.hypot(a, b[:1]), rtol=1e-12)

    def test_guvectorize(self):
        @guvectorize([(float64[:], float64[:])], "(n)->(n)", target="cuda")
        def running_total(values, result):
            total = 0.0
            for i in range(values.shape[0]):
                total += values[i]
                result[i] = total

        values = random((30, 12), np.float64)
        np.testing.assert_allclose(running_total(values), values.cumsum(axis=1), rtol=1e-12)

    def test_reduce(self):
        total = cuda.reduce(lambda a, b: a + b)
        largest = cuda.reduce(lambda a, b: a if a > b else b)
        values = np.random.default_rng(6).integers(-1000, 1000, 12_345)
        self.assertEqual(total(values), values.sum())
        self.assertEqual(largest(values, init=-10_000), values.max())

    def test_random_numbers(self):
        @cuda.jit
        def pi(states, rounds, result):
            i = cuda.grid(1)
            inside = 0
            for _ in range(rounds):
                x = device_random.xoroshiro128p_uniform_float32(states, i)
                y = device_random.xoroshiro128p_uniform_float32(states, i)
                inside += x * x + y * y <= 1
            result[i] = inside

        states = device_random.create_xoroshiro128p_states(512, seed=7)
        result = np.zeros(512, np.int64)
        pi[4, THREADS](states, 200, result)
        self.assertAlmostEqual(4 * result.sum() / (512 * 200), math.pi, delta=0.03)

    def test_fast_mathematics_and_options(self):
        @cuda.jit(fastmath=True, max_registers=32)
        def fast(values):
            i = cuda.grid(1)
            if i < values.size:
                values[i] = math.exp(values[i]) / math.sqrt(values[i] + float32(1))

        values = random(100)
        expected = np.exp(values) / np.sqrt(values + 1)
        fast[1, THREADS](values)
        np.testing.assert_allclose(values, expected, rtol=1e-5)
        self.assertIn(".entry", next(iter(fast.inspect_asm().values())))

    def test_exceptions_of_a_debug_kernel(self):
        @cuda.jit(debug=True, opt=False)
        def check(values, limit):
            if values[cuda.grid(1)] > limit:
                raise ValueError("too large")

        values = np.arange(32)
        check[1, 32](values, 31)
        with self.assertRaisesRegex(ValueError, "too large"):
            check[1, 32](values, 30)

    def test_launch_with_a_wrong_shape_fails(self):
        values = cuda.to_device(random(10))
        with self.assertRaisesRegex(Exception, "INVALID_VALUE|INVALID_CONFIGURATION"):
            add[1, 4096](values, values, values)
        add[1, 32](values, values, values)  # the context is still valid
        cuda.synchronize()


if __name__ == "__main__":
    cases.main()
