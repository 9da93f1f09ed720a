"""Tests CuPy's arrays against NumPy. Tests that need a missing NVIDIA library are skipped."""
import unittest

import cupy as cp
import numpy as np

import cases

TYPES = (np.uint8, np.int32, np.float16, np.float64, np.complex64)  # each compiles dozens of kernels


def random(shape, dtype=np.float32, seed=1):
    values = np.random.default_rng(seed).random(shape) * 100
    return values.astype(dtype)


def same(actual, expected, **tolerance):
    np.testing.assert_allclose(cp.asnumpy(actual), expected, **tolerance)


class Arrays(unittest.TestCase):
    def test_there_and_back(self):
        for dtype in TYPES:
            for order in "CF":
                there = np.asarray(random((17, 31), dtype), order=order)
                back = cp.asnumpy(cp.asarray(there), order=order)
                np.testing.assert_array_equal(back, there)
                self.assertEqual(back.flags.f_contiguous, there.flags.f_contiguous)

    def test_arithmetic(self):
        for dtype in TYPES:
            a, b = random((50, 40), dtype) + dtype(1), random(40, dtype, 2) + dtype(1)
            x, y = cp.asarray(a), cp.asarray(b)
            tolerance = 1e-2 if dtype == np.float16 else 1e-5
            with np.errstate(over="ignore"):
                for operation in (lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p / q):
                    same(operation(x, y), operation(a, b), rtol=tolerance)
            if not np.issubdtype(dtype, np.complexfloating):
                same(x // y, a // b)
                same(x % y, a % b, rtol=tolerance, atol=0.1 if dtype == np.float16 else 1e-5)
                np.testing.assert_array_equal(cp.asnumpy(x > y), a > b)

    def test_functions(self):
        a = random(1000) / np.float32(101) + np.float32(0.001)
        x = cp.asarray(a)
        for name in ("sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp exp2 expm1 log log2 log10 "
                     "log1p sqrt cbrt square reciprocal floor ceil rint trunc sign fabs negative isnan isfinite "
                     "deg2rad sinc i0").split():
            same(getattr(cp, name)(x), getattr(np, name)(a), rtol=2e-5, atol=2e-5, err_msg=name)

    def test_integers_and_bits(self):
        a, b = random(500, np.int64) + 1, random(500, np.int64, 2) + 1
        x, y = cp.asarray(a), cp.asarray(b)
        for name in "bitwise_and bitwise_or bitwise_xor gcd lcm maximum minimum left_shift right_shift".split():
            np.testing.assert_array_equal(cp.asnumpy(getattr(cp, name)(x, y % 16)), getattr(np, name)(a, b % 16))
        np.testing.assert_array_equal(cp.asnumpy(cp.packbits(x % 2 == 0)), np.packbits(a % 2 == 0))

    def test_conversions(self):
        values = random(300, np.float64) - 50
        for dtype in (np.int8, np.int64, np.float16, np.complex64, np.bool_):
            np.testing.assert_array_equal(cp.asnumpy(cp.asarray(values).astype(dtype)), values.astype(dtype))

    def test_reductions(self):
        for dtype in (np.int32, np.float32, np.complex64):
            a = random((23, 45, 6), dtype)
            x = cp.asarray(a)
            tolerance = 1e-4 if dtype in (np.float32, np.complex64) else 1e-11
            for axis in (None, 0, 1, 2, (0, 2)):
                same(x.sum(axis=axis), a.sum(axis=axis), rtol=tolerance)
                same(x.mean(axis=axis), a.mean(axis=axis), rtol=tolerance)
                if not np.issubdtype(dtype, np.complexfloating):
                    same(x.max(axis=axis), a.max(axis=axis))
                    same(x.min(axis=axis), a.min(axis=axis))
                    same(x.var(axis=axis), a.var(axis=axis), rtol=1e-3)
            for axis in (None, 0, 1):
                if not np.issubdtype(dtype, np.complexfloating):
                    np.testing.assert_array_equal(cp.asnumpy(x.argmax(axis=axis)), a.argmax(axis=axis))
            np.testing.assert_array_equal(cp.asnumpy((x > 50).all(axis=1)), (a > 50).all(axis=1))
            np.testing.assert_array_equal(cp.asnumpy((x > 50).any()), (a > 50).any())
        large = random(1_000_000, np.float64)
        same(cp.asarray(large).sum(), large.sum(), rtol=1e-11)
        same(cp.asarray(large).max(), large.max())

    def test_scans(self):
        a = random((30, 700), np.int64)
        x = cp.asarray(a)
        for axis in (None, 0, 1):
            np.testing.assert_array_equal(cp.asnumpy(cp.cumsum(x, axis=axis)), a.cumsum(axis=axis))
        same(cp.cumprod(cp.asarray(a[0, :20] / 50)), (a[0, :20] / 50).cumprod(), rtol=1e-11)
        np.testing.assert_array_equal(cp.asnumpy(cp.diff(x)), np.diff(a))
        np.testing.assert_array_equal(cp.asnumpy(cp.nonzero(x.ravel() > 50)[0]), np.nonzero(a.ravel() > 50)[0])

    def test_sorting(self):
        # Few types and functions, because each needs a dozen Thrust kernels, which are slow to compile.
        a = random(5000, np.float64)
        x = cp.asarray(a)
        np.testing.assert_array_equal(cp.asnumpy(cp.sort(x)), np.sort(a))
        np.testing.assert_array_equal(cp.asnumpy(x[cp.argsort(x)]), np.sort(a))
        np.testing.assert_array_equal(cp.asnumpy(cp.searchsorted(cp.sort(x), cp.asarray(a[::-1]))),
                                      np.searchsorted(np.sort(a), a[::-1]))

    def test_indexing(self):
        a = random((20, 30, 4), np.float32)
        x = cp.asarray(a)
        rows = np.array([3, 1, 19, 3, -2])
        index = cp.asarray(rows)
        np.testing.assert_array_equal(cp.asnumpy(x[index]), a[rows])
        np.testing.assert_array_equal(cp.asnumpy(x[index, 2:9]), a[rows, 2:9])
        np.testing.assert_array_equal(cp.asnumpy(x[index[:, None], index[None, :]]), a[rows[:, None], rows[None, :]])
        np.testing.assert_array_equal(cp.asnumpy(x[x > 60]), a[a > 60])
        np.testing.assert_array_equal(cp.asnumpy(x[::-2, ..., 1]), a[::-2, ..., 1])
        np.testing.assert_array_equal(cp.asnumpy(x.take(index, axis=1)), a.take(rows, axis=1))
        np.testing.assert_array_equal(cp.asnumpy(cp.where(x > 50, x, -x)), np.where(a > 50, a, -a))
        x[index], a[rows] = 7, 7
        x[x > 90], a[a > 90] = 0, 0
        x[4, :, 2], a[4, :, 2] = cp.arange(30), np.arange(30)
        np.testing.assert_array_equal(cp.asnumpy(x), a)
        counts, expected = cp.zeros(5, np.int64), np.zeros(5, np.int64)
        where = random(300, np.int64) % 5
        cp.add.at(counts, cp.asarray(where), 1)
        np.add.at(expected, where, 1)
        np.testing.assert_array_equal(cp.asnumpy(counts), expected)

    def test_shapes(self):
        a = random((6, 8, 10), np.int32)
        x = cp.asarray(a)
        np.testing.assert_array_equal(cp.asnumpy(x.transpose(2, 0, 1).copy()), a.transpose(2, 0, 1))
        np.testing.assert_array_equal(cp.asnumpy(x.reshape(48, 10)), a.reshape(48, 10))
        np.testing.assert_array_equal(cp.asnumpy(cp.concatenate([x, x], axis=1)), np.concatenate([a, a], axis=1))
        np.testing.assert_array_equal(cp.asnumpy(cp.stack([x[0], x[1]])), np.stack([a[0], a[1]]))
        np.testing.assert_array_equal(cp.asnumpy(cp.tile(x[0], (2, 3))), np.tile(a[0], (2, 3)))
        np.testing.assert_array_equal(cp.asnumpy(cp.repeat(x, 3, axis=2)), np.repeat(a, 3, axis=2))
        np.testing.assert_array_equal(cp.asnumpy(cp.roll(x, 3, axis=1)), np.roll(a, 3, axis=1))
        np.testing.assert_array_equal(cp.asnumpy(cp.flip(x, 0)), np.flip(a, 0))
        np.testing.assert_array_equal(cp.asnumpy(cp.pad(x[0], 2)), np.pad(a[0], 2))
        np.testing.assert_array_equal(cp.asnumpy(cp.broadcast_to(x[:, :1], (6, 8, 10))), np.broadcast_to(a[:, :1], (6, 8, 10)))

    def test_statistics(self):
        a = random(4000, np.float64)
        x = cp.asarray(a)
        np.testing.assert_array_equal(cp.asnumpy(cp.histogram(x, 20)[0]), np.histogram(a, 20)[0])
        counted = (a * 3).astype(np.int64)
        np.testing.assert_array_equal(cp.asnumpy(cp.bincount(cp.asarray(counted))), np.bincount(counted))
        same(cp.interp(x, cp.arange(0, 101, 10), cp.arange(11) ** 2), np.interp(a, np.arange(0, 101, 10), np.arange(11) ** 2),
             rtol=1e-9)

    def test_products_of_integers(self):
        try:
            import cupy_backends.cuda.libs.cublas as cublas
            cublas.getVersion  # loads the library
        except ImportError as missing:
            self.skipTest(f"needs cuBLAS ({missing})")
        a, b = random((20, 30), np.int64), random((30, 10), np.int64, 2)
        np.testing.assert_array_equal(cp.asnumpy(cp.asarray(a) @ cp.asarray(b)), a @ b)
        np.testing.assert_array_equal(cp.asnumpy(cp.tensordot(cp.asarray(a), cp.asarray(b), 1)), np.tensordot(a, b, 1))
        np.testing.assert_array_equal(cp.asnumpy(cp.einsum("ij,jk->ik", cp.asarray(a), cp.asarray(b))), a @ b)

    def test_fusion(self):
        @cp.fuse()
        def fused(x, y):
            return cp.sqrt(x * x + y * y) + cp.where(x > y, x, y)

        a, b = random(1000), random(1000, seed=2)
        same(fused(cp.asarray(a), cp.asarray(b)), np.sqrt(a * a + b * b) + np.where(a > b, a, b), rtol=1e-5)

    def test_random_numbers(self):
        # Generators have their own kernels; cupy.random.rand and similar functions need cuRAND.
        for bit_generator in (cp.random.XORWOW, cp.random.MRG32k3a, cp.random.Philox4x3210):
            generator = cp.random.Generator(bit_generator(seed=5))
            uniform = cp.asnumpy(generator.random(20_000))
            self.assertTrue((0 <= uniform).all() and (uniform < 1).all())
            self.assertAlmostEqual(uniform.mean(), 0.5, delta=0.02)
            normal = cp.asnumpy(generator.standard_normal(20_000))
            self.assertAlmostEqual(normal.mean(), 0, delta=0.05)
            self.assertAlmostEqual(normal.std(), 1, delta=0.05)
            numbers = cp.asnumpy(generator.integers(0, 10, 1000))
            self.assertEqual((numbers.min(), numbers.max()), (0, 9))

    def test_sparse_and_images(self):
        try:
            import cupyx.scipy.ndimage as ndimage
        except ImportError as missing:
            self.skipTest(f"needs {missing.name}")
        image = cp.asarray(random((40, 50), np.float64))
        blurred = cp.asnumpy(ndimage.uniform_filter(image, 3))
        padded = np.pad(cp.asnumpy(image), 1, mode="symmetric")
        expected = sum(padded[y:y + 40, x:x + 50] for y in range(3) for x in range(3)) / 9
        np.testing.assert_allclose(blurred, expected, rtol=1e-10)


if __name__ == "__main__":
    cases.main()
