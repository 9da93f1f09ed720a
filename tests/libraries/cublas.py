"""cuBLAS: levels 1 to 3, batches, other number formats, graphs, threads."""
import ctypes as c

from support import Library, numbers, product, threads, transposed

R_32F, R_16F, R_16BF, R_8I, R_32I, COMPUTE_32F, COMPUTE_32I = 0, 2, 14, 3, 10, 68, 72
N, T = 0, 1
f, d = c.c_float, c.c_double
ONE, ZERO = c.byref(f(1)), c.byref(f(0))
NOT_INITIALIZED, INVALID_VALUE = 1, 7


def tour(device):
    blas = Library("cublas")
    handle = blas.make("cublasCreate_v2")
    assert blas.ask(c.c_int, "cublasGetVersion_v2", handle) > 11000
    assert blas.ask(c.c_int, "cublasGetProperty", 0) >= 11
    assert blas.ask(c.c_int, "cublasGetPointerMode_v2", handle) == 0
    blas.cublasSetStream_v2(handle, device.stream)
    assert blas.ask(c.c_void_p, "cublasGetStream_v2", handle) == device.stream.value
    blas.cublasSetWorkspace_v2(handle, device.space(4 << 20), c.c_size_t(4 << 20))
    for part in (vectors, vectors_of_doubles, matrix_and_vector, matrices, formats, batches, copies):
        part(device, blas, handle)
    captured(device, blas, handle)
    wrong(device, blas, handle)
    blas.cublasDestroy_v2(handle)
    threads(4, lambda n: alone(device, blas, n))


def vectors(device, blas, handle):
    count = 1000
    x, y = device.floats([1] * count), device.floats(range(count))
    blas.cublasSaxpy_v2(handle, count, c.byref(f(2)), x, 1, y, 1)
    device.expect(y, [n + 2 for n in range(count)])
    result, place = f(-1), c.c_int(-1)
    blas.cublasSdot_v2(handle, count, x, 1, x, 1, c.byref(result))
    device.same([result.value], [count])
    blas.cublasSnrm2_v2(handle, count, x, 1, c.byref(result))
    device.same([result.value], [count ** 0.5])
    blas.cublasSasum_v2(handle, count, x, 1, c.byref(result))
    device.same([result.value], [count])
    blas.cublasIsamax_v2(handle, count, y, 1, c.byref(place))
    device.same([place.value], [count])  # the index starts at 1
    blas.cublasSscal_v2(handle, count, c.byref(f(3)), x, 1)
    blas.cublasScopy_v2(handle, count, x, 1, y, 1)
    blas.cublasSrot_v2(handle, count, x, 1, y, 1, c.byref(f(0)), c.byref(f(2)))
    blas.cublasSswap_v2(handle, count // 2, x, 2, y, 2)
    device.expect(x, [-6, 6] * (count // 2))
    device.expect(y, [6, -6] * (count // 2))
    blas.cublasSetPointerMode_v2(handle, 1)  # results and factors on the device
    there = device.floats([0])
    blas.cublasSdot_v2(handle, count, x, 1, x, 1, there)
    device.expect(there, [36 * count])
    blas.cublasSetPointerMode_v2(handle, 0)


def vectors_of_doubles(device, blas, handle):
    x, y = device.doubles([1.5] * 100), device.doubles([1] * 100)
    blas.cublasDaxpy_v2(handle, 100, c.byref(d(2)), x, 1, y, 1)
    device.expect(y, [4] * 100, code="d")
    result = d()
    blas.cublasDnrm2_v2(handle, 100, y, 1, c.byref(result))
    device.same([result.value], [40])


def matrix_and_vector(device, blas, handle):
    rows, columns = 24, 17
    a, x, y = numbers(rows * columns), numbers(columns, 2), numbers(rows, 3)
    there, left, right = device.floats(a), device.floats(x), device.floats(y)
    blas.cublasSgemv_v2(handle, N, rows, columns, ONE, there, rows, left, 1, ZERO, right, 1)
    device.expect(right, product(a, x, rows, columns, 1))
    right = device.floats(y)
    blas.cublasSgemv_v2(handle, T, rows, columns, ONE, there, rows, right, 1, ZERO, left, 1)
    device.expect(left, product(transposed(a, rows, columns), y, columns, rows, 1))
    blas.cublasSger_v2(handle, rows, columns, ONE, right, 1, device.floats(x), 1, there, rows)
    device.expect(there, [a[j * rows + i] + y[i] * x[j] for j in range(columns) for i in range(rows)])
    triangle = device.floats([2.0 if i == j else float(i > j) for j in range(8) for i in range(8)])
    ones = device.floats([2.0 + i for i in range(8)])
    blas.cublasStrsv_v2(handle, 0, N, 0, 8, triangle, 8, ones, 1)  # lower
    device.expect(ones, [1] * 8)
    symmetric = device.floats([1.0] * 64)
    blas.cublasSsymv_v2(handle, 0, 8, ONE, symmetric, 8, ones, 1, ZERO, device.space(32), 1)


def matrices(device, blas, handle):
    m, n, k = 40, 24, 33
    a, b = numbers(m * k), numbers(k * n, 2)
    wanted = product(a, b, m, k, n)
    for turn_a in (N, T):
        for turn_b in (N, T):
            left = device.floats(transposed(a, m, k) if turn_a else a)
            right = device.floats(transposed(b, k, n) if turn_b else b)
            out = device.space(4 * m * n)
            blas.cublasSgemm_v2(handle, turn_a, turn_b, m, n, k, ONE, left, k if turn_a else m, right, n if turn_b else k, ZERO, out, m)
            device.expect(out, wanted)
    out = device.space(8 * m * n)
    blas.cublasDgemm_v2(handle, N, N, m, n, k, c.byref(d(1)), device.doubles(a), m, device.doubles(b), k, c.byref(d(0)), out, m)
    device.expect(out, wanted, code="d")
    complex_one, complex_zero = (f * 2)(1, 0), (f * 2)(0, 0)
    both = [part for value in a for part in (0.0, value)]  # i times a
    real = [part for value in b for part in (value, 0.0)]
    blas.cublasCgemm_v2(handle, N, N, m, n, k, complex_one, device.floats(both), m, device.floats(real), k, complex_zero, out, m)
    device.expect(out, [part for value in wanted for part in (0.0, value)])
    blas.cublasSgeam(handle, T, N, k, m, ONE, device.floats(a), m, ZERO, device.floats(a), k, out, k)
    device.expect(out, transposed(a, m, k))
    blas.cublasSdgmm(handle, 1, m, k, device.floats(a), m, device.floats([2] * k), 1, out, m)
    device.expect(out, [2 * value for value in a])
    blas.cublasSsyrk_v2(handle, 0, N, m, k, ONE, device.floats(a), m, ZERO, device.floats([0] * m * m), m)
    triangle = device.floats([2.0 if i == j else 0.0 for j in range(8) for i in range(8)])
    sides = device.floats([6] * 64)
    blas.cublasStrsm_v2(handle, 0, 0, N, 0, 8, 8, ONE, triangle, 8, sides, 8)
    device.expect(sides, [3] * 64)


def formats(device, blas, handle):
    side = 32
    a, b = numbers(side * side), numbers(side * side, 2)
    wanted = product(a, b, side, side, side)
    out = device.space(4 * side * side)
    for code, kind in (("e", R_16F), ("b16", R_16BF)):
        left, right = device.of(code, a), device.of(code, b)
        blas.cublasGemmEx(handle, N, N, side, side, side, ONE, left, kind, side, right, kind, side, ZERO, out, kind, side, COMPUTE_32F, -1)
        device.expect(out, wanted, 2e-2, code)
        blas.cublasGemmEx(handle, N, N, side, side, side, ONE, left, kind, side, right, kind, side, ZERO, out, R_32F, side, COMPUTE_32F, -1)
        device.expect(out, wanted)
    if not device.newer:
        bytes_ = [n % 7 - 3 for n in range(side * side)]
        left = device.of("b", bytes_)
        blas.cublasGemmEx(handle, T, N, side, side, side, c.byref(c.c_int(1)), left, R_8I, side, left, R_8I, side, c.byref(c.c_int(0)), out, R_32I, side, COMPUTE_32I, -1)
        device.expect(out, product(transposed(bytes_, side, side), bytes_, side, side, side), code="i")
    blas.cublasSetMathMode(handle, 3)  # TF32
    blas.cublasSgemm_v2(handle, N, N, side, side, side, ONE, device.floats(a), side, device.floats(b), side, ZERO, out, side)
    device.expect(out, wanted, 1e-2)
    blas.cublasSetMathMode(handle, 0)


def batches(device, blas, handle):
    side, count = 8, 4
    a, b = numbers(side * side * count), numbers(side * side * count, 2)
    size = side * side
    wanted = [value for n in range(0, count * size, size) for value in product(a[n:n + size], b[n:n + size], side, side, side)]
    left, right, out = device.floats(a), device.floats(b), device.space(4 * size * count)
    step = c.c_longlong(size)
    blas.cublasSgemmStridedBatched(handle, N, N, side, side, side, ONE, left, side, step, right, side, step, ZERO, out, side, step, count)
    device.expect(out, wanted)
    lists = [device.addresses(memory, 4 * size, count) for memory in (left, right, out)]
    blas.cublasSgemmBatched(handle, N, N, side, side, side, ONE, lists[0], side, lists[1], side, ZERO, lists[2], side, count)
    device.expect(out, wanted)
    square = device.floats([float(i == j) * 4 for _ in range(count) for j in range(side) for i in range(side)])
    pivots, info = device.space(4 * side * count), device.space(4 * count)
    of_square = device.addresses(square, 4 * size, count)
    blas.cublasSgetrfBatched(handle, side, of_square, side, pivots, info, count)
    blas.cublasSgetriBatched(handle, side, of_square, side, pivots, lists[2], side, info, count)
    device.expect(info, [0] * count, code="i")
    device.expect(out, [float(i == j) / 4 for _ in range(count) for j in range(side) for i in range(side)])


def copies(device, blas, handle):
    rows, columns = 10, 7
    there, back = device.space(4 * rows * columns), (f * (rows * columns))()
    blas.cublasSetMatrix(rows, columns, 4, (f * (rows * columns))(*range(rows * columns)), rows, there, rows)
    blas.cublasGetMatrix(rows, columns, 4, there, rows, back, rows)
    assert list(back) == list(range(rows * columns))
    blas.cublasSetVector(5, 4, (f * 5)(*range(5)), 1, there, 1)
    blas.cublasGetVectorAsync(5, 4, there, 1, back, 1, device.stream)
    device.runtime.cudaStreamSynchronize(device.stream)
    assert list(back)[:5] == list(range(5))


def captured(device, blas, handle):
    side = 16
    a, out = device.floats([0.5] * side * side), device.floats([0] * side * side)
    device.captured(lambda: blas.cublasSgemm_v2(handle, N, T, side, side, side, ONE, a, side, a, side, ONE, out, side), 3)
    device.expect(out, [3 * side / 4] * side * side)


def wrong(device, blas, handle):
    out = device.space(64)
    blas.refuses(NOT_INITIALIZED, "cublasSscal_v2", None, 4, ONE, out, 1)
    blas.refuses(INVALID_VALUE, "cublasSgemm_v2", handle, N, N, -1, 4, 4, ONE, out, 4, out, 4, ZERO, out, 4)
    blas.refuses(INVALID_VALUE, "cublasSgemm_v2", handle, N, N, 4, 4, 4, ONE, out, 2, out, 4, ZERO, out, 4)
    blas.refuses(INVALID_VALUE, "cublasSetPointerMode_v2", handle, 7)
    blas.refuses(INVALID_VALUE, "cublasCreate_v2", None)


def alone(device, blas, n):
    """The work of one thread, with its own handle and stream."""
    side = 16
    handle, stream = blas.make("cublasCreate_v2"), device.runtime.make("cudaStreamCreateWithFlags", 1)
    blas.cublasSetStream_v2(handle, stream)
    a, out = device.floats([float(n)] * side * side), device.floats([0] * side * side)
    for _ in range(5):
        blas.cublasSgemm_v2(handle, N, N, side, side, side, ONE, a, side, a, side, ONE, out, side)
    device.expect(out, [5 * n * n * side] * side * side, stream=stream)
    blas.cublasDestroy_v2(handle)
    device.runtime.cudaStreamDestroy(stream)
