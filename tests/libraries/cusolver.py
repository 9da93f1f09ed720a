"""cuSOLVER: dense and sparse systems, factorisations, eigenvalues, singular values, batches, the 64-bit interface."""
import ctypes as c

from support import Library, numbers, product, threads, transposed

R_64F = 1  # CUDA_R_64F
N, T, LOWER, UPPER, VECTORS = 0, 1, 0, 1, 1
SIDE = 12


def tour(device):
    solver = Library("cusolver")
    assert solver.ask(c.c_int, "cusolverGetVersion") >= 11000
    handle = solver.make("cusolverDnCreate")
    solver.cusolverDnSetStream(handle, device.stream)
    for part in (triangular, definite, orthogonal, eigenvalues, singular_values, batches, wide, sparse, wrong):
        part(device, solver, handle)
    solver.cusolverDnDestroy(handle)
    threads(3, lambda n: alone(device, solver, n))


def matrix(seed=1):
    """Returns an invertible matrix a, and the symmetric positive definite matrix transposed(a) * a."""
    a = numbers(SIDE * SIDE, seed)
    for n in range(SIDE):
        a[n * SIDE + n] += SIDE
    return a, product(transposed(a, SIDE, SIDE), a, SIDE, SIDE, SIDE)


def right_side(a):
    """Returns the right side for which the solution is 1, 2, 3, ..."""
    return product(a, [n + 1 for n in range(SIDE)], SIDE, SIDE, 1)


SOLUTION = [n + 1 for n in range(SIDE)]


def triangular(device, solver, handle):
    a, _ = matrix()
    for letter, code, tolerance in (("S", "f", 1e-3), ("D", "d", 1e-9)):
        there, b = device.of(code, a), device.of(code, right_side(a))
        size, info, pivots = c.c_int(), device.integers([-1]), device.space(4 * SIDE)
        getattr(solver, f"cusolverDn{letter}getrf_bufferSize")(handle, SIDE, SIDE, there, SIDE, c.byref(size))
        getattr(solver, f"cusolverDn{letter}getrf")(handle, SIDE, SIDE, there, SIDE, device.space(8 * size.value), pivots, info)
        device.expect(info, [0], code="i")
        getattr(solver, f"cusolverDn{letter}getrs")(handle, N, SIDE, 1, there, SIDE, pivots, b, SIDE, info)
        device.expect(b, SOLUTION, tolerance, code)


def definite(device, solver, handle):
    _, a = matrix()
    there, b = device.doubles(a), device.doubles(right_side(a))
    size, info = c.c_int(), device.integers([-1])
    solver.cusolverDnDpotrf_bufferSize(handle, LOWER, SIDE, there, SIDE, c.byref(size))
    solver.cusolverDnDpotrf(handle, LOWER, SIDE, there, SIDE, device.space(8 * size.value), size, info)
    device.expect(info, [0], code="i")
    solver.cusolverDnDpotrs(handle, LOWER, SIDE, 1, there, SIDE, b, SIDE, info)
    device.expect(b, SOLUTION, 1e-6, "d")


def orthogonal(device, solver, handle):
    a, _ = matrix()
    there, tau, b = device.doubles(a), device.space(8 * SIDE), device.doubles(right_side(a))
    size, info = c.c_int(), device.integers([-1])
    solver.cusolverDnDgeqrf_bufferSize(handle, SIDE, SIDE, there, SIDE, c.byref(size))
    solver.cusolverDnDgeqrf(handle, SIDE, SIDE, there, SIDE, tau, device.space(8 * size.value), size, info)
    device.expect(info, [0], code="i")
    solver.cusolverDnDormqr_bufferSize(handle, 0, T, SIDE, 1, SIDE, there, SIDE, tau, b, SIDE, c.byref(size))
    solver.cusolverDnDormqr(handle, 0, T, SIDE, 1, SIDE, there, SIDE, tau, b, SIDE, device.space(8 * size.value), size, info)
    if device.computes:  # the result is triangular
        r, x = device.read(there, SIDE * SIDE, "d"), device.read(b, SIDE, "d")
        for i in reversed(range(SIDE)):
            x[i] = (x[i] - sum(r[j * SIDE + i] * x[j] for j in range(i + 1, SIDE))) / r[i * SIDE + i]
        device.same(x, SOLUTION, 1e-9)
    solver.cusolverDnDorgqr_bufferSize(handle, SIDE, SIDE, SIDE, there, SIDE, tau, c.byref(size))
    solver.cusolverDnDorgqr(handle, SIDE, SIDE, SIDE, there, SIDE, tau, device.space(8 * size.value), size, info)
    q = device.read(there, SIDE * SIDE, "d")
    device.same(product(transposed(q, SIDE, SIDE), q, SIDE, SIDE, SIDE), [float(i == j) for i in range(SIDE) for j in range(SIDE)], 1e-9)


def eigenvalues(device, solver, handle):
    _, a = matrix()
    there, values = device.doubles(a), device.space(8 * SIDE)
    size, info = c.c_int(), device.integers([-1])
    solver.cusolverDnDsyevd_bufferSize(handle, VECTORS, LOWER, SIDE, there, SIDE, values, c.byref(size))
    solver.cusolverDnDsyevd(handle, VECTORS, LOWER, SIDE, there, SIDE, values, device.space(8 * size.value), size, info)
    device.expect(info, [0], code="i")
    holds(device, a, device.read(there, SIDE * SIDE, "d"), device.read(values, SIDE, "d"))
    parameters = solver.make("cusolverDnCreateSyevjInfo")
    solver.cusolverDnXsyevjSetTolerance(parameters, c.c_double(1e-12))
    there = device.doubles(a)
    solver.cusolverDnDsyevj_bufferSize(handle, VECTORS, LOWER, SIDE, there, SIDE, values, c.byref(size), parameters)
    solver.cusolverDnDsyevj(handle, VECTORS, LOWER, SIDE, there, SIDE, values, device.space(8 * size.value), size, info, parameters)
    holds(device, a, device.read(there, SIDE * SIDE, "d"), device.read(values, SIDE, "d"))
    solver.cusolverDnDestroySyevjInfo(parameters)


def holds(device, a, vectors, values):
    """Checks that a * v = lambda * v."""
    device.same(product(a, vectors, SIDE, SIDE, SIDE), [values[j] * vectors[j * SIDE + i] for j in range(SIDE) for i in range(SIDE)], 1e-6)


def singular_values(device, solver, handle):
    a, _ = matrix()
    there, values, u, vt = device.doubles(a), device.space(8 * SIDE), device.space(8 * SIDE * SIDE), device.space(8 * SIDE * SIDE)
    size, info = c.c_int(), device.integers([-1])
    solver.cusolverDnDgesvd_bufferSize(handle, SIDE, SIDE, c.byref(size))
    everything = c.c_byte(ord("A"))
    solver.cusolverDnDgesvd(handle, everything, everything, SIDE, SIDE, there, SIDE, values, u, SIDE, vt, SIDE, device.space(8 * size.value), size, None, info)
    device.expect(info, [0], code="i")
    s, left, right = device.read(values, SIDE, "d"), device.read(u, SIDE * SIDE, "d"), device.read(vt, SIDE * SIDE, "d")
    device.same(product([left[j * SIDE + i] * s[j] for j in range(SIDE) for i in range(SIDE)], right, SIDE, SIDE, SIDE), a, 1e-9)
    parameters, there = solver.make("cusolverDnCreateGesvdjInfo"), device.doubles(a)
    words = (SIDE, SIDE, there, SIDE, values, u, SIDE, vt, SIDE)
    solver.cusolverDnDgesvdj_bufferSize(handle, VECTORS, 0, *words, c.byref(size), parameters)
    solver.cusolverDnDgesvdj(handle, VECTORS, 0, *words, device.space(8 * size.value), size, info, parameters)
    device.expect(values, s, 1e-6, "d")
    solver.cusolverDnDestroyGesvdjInfo(parameters)


def batches(device, solver, handle):
    count, size = 3, SIDE * SIDE
    systems = [matrix(n + 1)[1] for n in range(count)]
    there = device.doubles([value for a in systems for value in a])
    b = device.doubles([value for a in systems for value in right_side(a)])
    lists, sides, info = device.addresses(there, 8 * size, count), device.addresses(b, 8 * SIDE, count), device.integers([-1] * count)
    solver.cusolverDnDpotrfBatched(handle, LOWER, SIDE, lists, SIDE, info, count)
    device.expect(info, [0] * count, code="i")
    solver.cusolverDnDpotrsBatched(handle, LOWER, SIDE, 1, lists, SIDE, sides, SIDE, info, count)
    device.expect(b, SOLUTION * count, 1e-6, "d")


def wide(device, solver, handle):
    """The 64-bit interface, with workspaces on the host and on the device."""
    a, _ = matrix()
    parameters = solver.make("cusolverDnCreateParams")
    side = c.c_int64(SIDE)
    there, b, pivots, info = device.doubles(a), device.doubles(right_side(a)), device.space(8 * SIDE), device.integers([-1])
    on_device, on_host = c.c_size_t(), c.c_size_t()
    solver.cusolverDnXgetrf_bufferSize(handle, parameters, side, side, R_64F, there, side, R_64F, c.byref(on_device), c.byref(on_host))
    solver.cusolverDnXgetrf(handle, parameters, side, side, R_64F, there, side, pivots, R_64F, device.space(on_device.value), on_device,
                            c.create_string_buffer(max(on_host.value, 1)), on_host, info)
    device.expect(info, [0], code="i")
    solver.cusolverDnXgetrs(handle, parameters, N, side, c.c_int64(1), R_64F, there, side, pivots, R_64F, b, side, info)
    device.expect(b, SOLUTION, 1e-9, "d")
    solver.cusolverDnDestroyParams(parameters)


def sparse(device, solver, _):
    handle = solver.make("cusolverSpCreate")
    solver.cusolverSpSetStream(handle, device.stream)
    description = Library("cusparse").make("cusparseCreateMatDescr")
    values, rows, columns = [], [0], []
    for n in range(SIDE):  # 4 on the diagonal, -1 beside it
        for column, value in ((n - 1, -1.0), (n, 4.0), (n + 1, -1.0)):
            if 0 <= column < SIDE:
                values.append(value)
                columns.append(column)
        rows.append(len(values))
    b = [sum(values[k] * SOLUTION[columns[k]] for k in range(rows[n], rows[n + 1])) for n in range(SIDE)]
    x, singular = device.space(8 * SIDE), c.c_int(-2)
    words = (description, device.doubles(values), device.integers(rows), device.integers(columns), device.doubles(b), c.c_double(1e-12), 0, x, c.byref(singular))
    for name in ("cusolverSpDcsrlsvqr",) + (("cusolverSpDcsrlsvchol",) if device.computes else ()):  # the last one reads its results on the host
        getattr(solver, name)(handle, SIDE, len(values), *words)
        device.same([singular.value], [-1])
        device.expect(x, SOLUTION, 1e-9, "d")
    Library("cusparse").cusparseDestroyMatDescr(description)
    solver.cusolverSpDestroy(handle)


def wrong(device, solver, handle):
    zeros, info, size = device.doubles([0] * 16), device.integers([-1]), c.c_int()
    solver.cusolverDnDpotrf_bufferSize(handle, LOWER, 4, zeros, 4, c.byref(size))
    solver.cusolverDnDpotrf(handle, LOWER, 4, zeros, 4, device.space(8 * size.value), size, info)
    device.expect(info, [1], code="i")  # the first minor is not positive


def alone(device, solver, n):
    handle, stream = solver.make("cusolverDnCreate"), device.runtime.make("cudaStreamCreateWithFlags", 1)
    solver.cusolverDnSetStream(handle, stream)
    a, _ = matrix(n + 1)
    there, b, pivots, info, size = device.doubles(a), device.doubles(right_side(a)), device.space(4 * SIDE), device.integers([-1]), c.c_int()
    solver.cusolverDnDgetrf_bufferSize(handle, SIDE, SIDE, there, SIDE, c.byref(size))
    solver.cusolverDnDgetrf(handle, SIDE, SIDE, there, SIDE, device.space(8 * size.value), pivots, info)
    solver.cusolverDnDgetrs(handle, N, SIDE, 1, there, SIDE, pivots, b, SIDE, info)
    device.expect(b, SOLUTION, 1e-9, "d", stream=stream)
    solver.cusolverDnDestroy(handle)
    device.runtime.cudaStreamDestroy(stream)
