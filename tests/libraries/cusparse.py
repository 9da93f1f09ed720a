"""cuSPARSE: products, conversions, triangular systems, vectors, with the generic interface."""
import ctypes as c

from support import Library, numbers, threads

R_32F, INT32, BASE0 = 0, 2, 0
N, ROW_ORDER, COLUMN_ORDER = 0, 2, 1
INVALID_VALUE = 3
ROWS, COLUMNS = 20, 16
ONE, ZERO = c.byref(c.c_float(1)), c.byref(c.c_float(0))
i64 = c.c_int64


def tour(device):
    sparse = Library("cusparse")
    handle = sparse.make("cusparseCreate")
    assert sparse.ask(c.c_int, "cusparseGetVersion", handle) >= 11000
    sparse.cusparseSetStream(handle, device.stream)
    a = Sparse(device, sparse)
    for part in (times_vector, times_matrix, sampled, times_sparse, triangular, conversions, vectors, tridiagonal, captured):
        part(device, sparse, handle, a)
    wrong(device, sparse, handle, a)
    a.close()
    sparse.cusparseDestroy(handle)
    threads(3, lambda n: alone(device, sparse, n))


class Sparse:
    """A matrix in two sparse layouts on the device (CSR, COO), and dense in row order on the host."""

    def __init__(self, device, sparse):
        self.sparse = sparse
        every = numbers(ROWS * COLUMNS, 5)
        self.dense = [value if (n * 7) % 5 < 2 else 0.0 for n, value in enumerate(every)]
        entries = [(n // COLUMNS, n % COLUMNS, value) for n, value in enumerate(self.dense) if value]
        self.count = len(entries)
        starts = [sum(row < n for row, _, _ in entries) for n in range(ROWS + 1)]
        self.starts, self.rows = device.integers(starts), device.integers([row for row, _, _ in entries])
        self.columns, self.values = device.integers([column for _, column, _ in entries]), device.floats([value for _, _, value in entries])
        shape = i64(ROWS), i64(COLUMNS), i64(self.count)
        self.csr = sparse.make("cusparseCreateCsr", *shape, self.starts, self.columns, self.values, INT32, INT32, BASE0, R_32F)
        self.coo = sparse.make("cusparseCreateCoo", *shape, self.rows, self.columns, self.values, INT32, BASE0, R_32F)

    def times(self, x):
        return [sum(self.dense[row * COLUMNS + n] * x[n] for n in range(COLUMNS)) for row in range(ROWS)]

    def close(self):
        self.sparse.cusparseDestroySpMat(self.csr)
        self.sparse.cusparseDestroySpMat(self.coo)


def vector(sparse, memory, count):
    return sparse.make("cusparseCreateDnVec", i64(count), memory, R_32F)


def dense(sparse, memory, rows, columns, order):
    return sparse.make("cusparseCreateDnMat", i64(rows), i64(columns), i64(columns if order == ROW_ORDER else rows), memory, R_32F, order)


def times_vector(device, sparse, handle, a):
    x, y = numbers(COLUMNS, 3), device.floats([0] * ROWS)
    left, right = vector(sparse, device.floats(x), COLUMNS), vector(sparse, y, ROWS)
    for matrix in (a.csr, a.coo):
        words = (handle, N, ONE, matrix, left, ZERO, right, R_32F, 0)
        buffer = device.space(sparse.ask(c.c_size_t, "cusparseSpMV_bufferSize", *words))
        sparse.cusparseSpMV_preprocess(*words, buffer)
        sparse.cusparseSpMV(*words, buffer)
        device.expect(y, a.times(x))
    sparse.cusparseDestroyDnVec(left)
    sparse.cusparseDestroyDnVec(right)


def times_matrix(device, sparse, handle, a):
    b, columns = numbers(COLUMNS * 8, 4), 8
    out = device.floats([0] * ROWS * columns)
    wanted = [sum(a.dense[i * COLUMNS + k] * b[k * columns + j] for k in range(COLUMNS)) for i in range(ROWS) for j in range(columns)]
    left, right = dense(sparse, device.floats(b), COLUMNS, columns, ROW_ORDER), dense(sparse, out, ROWS, columns, ROW_ORDER)
    for matrix in (a.csr, a.coo):
        words = (handle, N, N, ONE, matrix, left, ZERO, right, R_32F, 0)
        sparse.cusparseSpMM(*words, device.space(sparse.ask(c.c_size_t, "cusparseSpMM_bufferSize", *words)))
        device.expect(out, wanted)
    sparse.cusparseDestroyDnMat(left)
    sparse.cusparseDestroyDnMat(right)


def sampled(device, sparse, handle, a):
    """Sampled product: computes the dense product where the sparse matrix is not zero."""
    inner = 6
    x, y = numbers(ROWS * inner, 6), numbers(inner * COLUMNS, 7)
    out = device.floats([0] * a.count)
    matrix = sparse.make("cusparseCreateCsr", i64(ROWS), i64(COLUMNS), i64(a.count), a.starts, a.columns, out, INT32, INT32, BASE0, R_32F)
    left, right = dense(sparse, device.floats(x), ROWS, inner, ROW_ORDER), dense(sparse, device.floats(y), inner, COLUMNS, ROW_ORDER)
    words = (handle, N, N, ONE, left, right, ZERO, matrix, R_32F, 0)
    buffer = device.space(sparse.ask(c.c_size_t, "cusparseSDDMM_bufferSize", *words))
    sparse.cusparseSDDMM_preprocess(*words, buffer)
    sparse.cusparseSDDMM(*words, buffer)
    device.expect(out, [sum(x[n // COLUMNS * inner + k] * y[k * COLUMNS + n % COLUMNS] for k in range(inner)) for n, value in enumerate(a.dense) if value])
    for descriptor in (left, right):
        sparse.cusparseDestroyDnMat(descriptor)
    sparse.cusparseDestroySpMat(matrix)


def times_sparse(device, sparse, handle, a):
    """Multiplies a by a sparse diagonal matrix of twos."""
    twice = sparse.make("cusparseCreateCsr", i64(COLUMNS), i64(COLUMNS), i64(COLUMNS), device.integers(range(COLUMNS + 1)),
                         device.integers(range(COLUMNS)), device.floats([2.0] * COLUMNS), INT32, INT32, BASE0, R_32F)
    starts = device.integers([0] * (ROWS + 1))
    out = sparse.make("cusparseCreateCsr", i64(ROWS), i64(COLUMNS), i64(0), starts, None, None, INT32, INT32, BASE0, R_32F)
    description = sparse.make("cusparseSpGEMM_createDescr")
    words = (handle, N, N, ONE, a.csr, twice, ZERO, out, R_32F, 0, description)
    size = c.c_size_t()
    sparse.cusparseSpGEMM_workEstimation(*words, c.byref(size), None)
    sparse.cusparseSpGEMM_workEstimation(*words, c.byref(size), device.space(size.value))
    if device.computes:  # the library reads its kernels' counts on the host
        sparse.cusparseSpGEMM_compute(*words, c.byref(size), None)
        sparse.cusparseSpGEMM_compute(*words, c.byref(size), device.space(size.value))
        rows, columns, count = i64(), i64(), i64()
        sparse.cusparseSpMatGetSize(out, c.byref(rows), c.byref(columns), c.byref(count))
        assert count.value == a.count, f"{count.value} of {a.count}"
        places, values = device.space(4 * a.count), device.space(4 * a.count)
        sparse.cusparseCsrSetPointers(out, starts, places, values)
        sparse.cusparseSpGEMM_copy(*words)
        device.expect(values, [2 * value for value in a.dense if value])
    sparse.cusparseSpGEMM_destroyDescr(description)
    sparse.cusparseDestroySpMat(twice)
    sparse.cusparseDestroySpMat(out)


def triangular(device, sparse, handle, _):
    """2 on the diagonal and 1 below it: the right side 2, 3, 3, ... gives x = 1, 1, 1, ..."""
    if not device.computes:
        return  # the library divides by its kernels' counts
    count = 10
    entries = [(row, column, 2.0 if row == column else 1.0) for row in range(count) for column in (row - 1, row) if column >= 0]
    matrix = sparse.make("cusparseCreateCsr", i64(count), i64(count), i64(len(entries)), device.integers([max(0, 2 * n - 1) for n in range(count + 1)]),
                         device.integers([column for _, column, _ in entries]), device.floats([value for _, _, value in entries]), INT32, INT32, BASE0, R_32F)
    for attribute, value in ((0, 0), (1, 0)):  # lower triangle, non-unit diagonal
        sparse.cusparseSpMatSetAttribute(matrix, attribute, c.byref(c.c_int(value)), c.c_size_t(4))
    x = device.floats([0] * count)
    left, right = vector(sparse, device.floats([2] + [3] * (count - 1)), count), vector(sparse, x, count)
    description = sparse.make("cusparseSpSV_createDescr")
    words = (handle, N, ONE, matrix, left, right, R_32F, 0, description)
    buffer = device.space(sparse.ask(c.c_size_t, "cusparseSpSV_bufferSize", *words))
    sparse.cusparseSpSV_analysis(*words, buffer)
    sparse.cusparseSpSV_solve(*words)
    device.expect(x, [1] * count)
    sparse.cusparseSpSV_destroyDescr(description)
    sparse.cusparseDestroySpMat(matrix)
    sparse.cusparseDestroyDnVec(left)
    sparse.cusparseDestroyDnVec(right)


def conversions(device, sparse, handle, a):
    out = device.floats([-1] * ROWS * COLUMNS)
    full = dense(sparse, out, ROWS, COLUMNS, ROW_ORDER)
    buffer = device.space(sparse.ask(c.c_size_t, "cusparseSparseToDense_bufferSize", handle, a.csr, full, 0))
    sparse.cusparseSparseToDense(handle, a.csr, full, 0, buffer)
    device.expect(out, a.dense)
    starts = device.integers([0] * (ROWS + 1))
    back = sparse.make("cusparseCreateCsr", i64(ROWS), i64(COLUMNS), i64(0), starts, None, None, INT32, INT32, BASE0, R_32F)
    buffer = device.space(sparse.ask(c.c_size_t, "cusparseDenseToSparse_bufferSize", handle, full, back, 0))
    sparse.cusparseDenseToSparse_analysis(handle, full, back, 0, buffer)
    if device.computes:
        rows, columns, count = i64(), i64(), i64()
        sparse.cusparseSpMatGetSize(back, c.byref(rows), c.byref(columns), c.byref(count))
        assert count.value == a.count, f"{count.value} of {a.count}"
        values = device.space(4 * a.count)
        sparse.cusparseCsrSetPointers(back, starts, device.space(4 * a.count), values)
        sparse.cusparseDenseToSparse_convert(handle, full, back, 0, buffer)
        device.expect(values, [value for value in a.dense if value])
    sparse.cusparseDestroySpMat(back)
    sparse.cusparseDestroyDnMat(full)
    columns, places, values = device.integers([0] * (COLUMNS + 1)), device.space(4 * a.count), device.space(4 * a.count)
    words = (handle, ROWS, COLUMNS, a.count, a.values, a.starts, a.columns, values, columns, places, R_32F, 1, BASE0, 1)
    size = sparse.ask(c.c_size_t, "cusparseCsr2cscEx2_bufferSize", *words)
    sparse.cusparseCsr2cscEx2(*words, device.space(size))
    device.expect(values, [a.dense[row * COLUMNS + column] for column in range(COLUMNS) for row in range(ROWS) if a.dense[row * COLUMNS + column]])


def vectors(device, sparse, handle, _):
    places, few = device.integers([1, 3, 5]), device.floats([10, 20, 30])
    x, y = sparse.make("cusparseCreateSpVec", i64(8), i64(3), places, few, INT32, BASE0, R_32F), device.floats([1] * 8)
    full = vector(sparse, y, 8)
    sparse.cusparseAxpby(handle, ONE, x, ONE, full)
    device.expect(y, [1, 11, 1, 21, 1, 31, 1, 1])
    sparse.cusparseGather(handle, full, x)
    device.expect(few, [11, 21, 31])
    sparse.cusparseScatter(handle, x, full)
    result = c.c_float()
    words = (handle, N, x, full, c.byref(result), R_32F)
    sparse.cusparseSpVV(*words, device.space(sparse.ask(c.c_size_t, "cusparseSpVV_bufferSize", *words)))
    device.same([result.value], [11 ** 2 + 21 ** 2 + 31 ** 2])
    sparse.cusparseDestroySpVec(x)
    sparse.cusparseDestroyDnVec(full)


def tridiagonal(device, sparse, handle, _):
    count = 32
    lower, middle, upper = ([0.0] + [-1.0] * (count - 1)), [4.0] * count, ([-1.0] * (count - 1) + [0.0])
    b = [lower[n] + middle[n] + upper[n] for n in range(count)]
    words = (handle, count, 1, *map(device.floats, (lower, middle, upper, b)), count)
    size = sparse.ask(c.c_size_t, "cusparseSgtsv2_bufferSizeExt", *words)
    sparse.cusparseSgtsv2(*words, device.space(size))
    device.expect(words[6], [1] * count)


def captured(device, sparse, handle, _):
    a = Sparse(device, sparse)  # cuSPARSE 12.4 prepares the buffer of a matrix's first product and reads it in later products
    x, y = numbers(COLUMNS, 3), device.floats([0] * ROWS)
    left, right = vector(sparse, device.floats(x), COLUMNS), vector(sparse, y, ROWS)
    words = (handle, N, ONE, a.csr, left, ONE, right, R_32F, 0)
    buffer = device.space(sparse.ask(c.c_size_t, "cusparseSpMV_bufferSize", *words))
    device.captured(lambda: sparse.cusparseSpMV(*words, buffer), 3)
    device.expect(y, [3 * value for value in a.times(x)])
    sparse.cusparseDestroyDnVec(left)
    sparse.cusparseDestroyDnVec(right)
    a.close()


def wrong(device, sparse, handle, a):
    made = c.c_void_p()
    sparse.refuses(INVALID_VALUE, "cusparseSetStream", None, device.stream)
    sparse.refuses(INVALID_VALUE, "cusparseCreateCsr", c.byref(made), i64(-1), i64(4), i64(0), None, None, None, INT32, INT32, BASE0, R_32F)
    sparse.refuses(INVALID_VALUE, "cusparseSpMV", handle, N, ONE, None, None, ZERO, None, R_32F, 0, None)


def alone(device, sparse, n):
    handle, stream = sparse.make("cusparseCreate"), device.runtime.make("cudaStreamCreateWithFlags", 1)
    sparse.cusparseSetStream(handle, stream)
    a, x = Sparse(device, sparse), numbers(COLUMNS, n + 1)
    y = device.floats([0] * ROWS)
    left, right = vector(sparse, device.floats(x), COLUMNS), vector(sparse, y, ROWS)
    words = (handle, N, ONE, a.coo, left, ZERO, right, R_32F, 0)
    sparse.cusparseSpMV(*words, device.space(sparse.ask(c.c_size_t, "cusparseSpMV_bufferSize", *words)))
    device.expect(y, a.times(x), stream=stream)
    sparse.cusparseDestroyDnVec(left)
    sparse.cusparseDestroyDnVec(right)
    a.close()
    sparse.cusparseDestroy(handle)
    device.runtime.cudaStreamDestroy(stream)
