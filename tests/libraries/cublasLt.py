"""cuBLASLt: layouts, heuristics, number formats, epilogues, batches, transformations, graphs."""
import ctypes as c
import math

from support import Library, numbers, product, transposed

R_32F, R_16F, R_16BF, R_8I, R_32I, COMPUTE_32F, COMPUTE_32I = 0, 2, 14, 3, 10, 68, 72
SIDE = 64
ONE, ZERO = c.byref(c.c_float(1)), c.byref(c.c_float(0))
# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t
TRANSPOSE_A, EPILOGUE, BIAS, BATCHES, BATCH_STEP, WORKSPACE = 3, 7, 8, 5, 6, 1
RELU, RELU_BIAS, GELU_BIAS, PLAIN_BIAS = 2, 6, 36, 4
INVALID_VALUE = 7


class Choice(c.Structure):
    """cublasLtMatmulHeuristicResult_t"""
    _fields_ = [("algorithm", c.c_uint64 * 8), ("workspace", c.c_size_t), ("state", c.c_int), ("waves", c.c_float), ("reserved", c.c_int * 4)]


class Product:
    """d = a * b of square matrices."""

    def __init__(self, device, lt, handle, kind, compute=COMPUTE_32F, scale=R_32F, out=None, side=SIDE, batches=1):
        self.device, self.lt, self.handle = device, lt, handle
        self.operation = lt.make("cublasLtMatmulDescCreate", compute, scale)
        out = kind if out is None else out
        self.layouts = [lt.make("cublasLtMatrixLayoutCreate", kind, c.c_uint64(side), c.c_uint64(side), c.c_int64(side)) for kind in (kind, kind, out)]
        if batches > 1:
            for layout in self.layouts:
                self.set(lt.cublasLtMatrixLayoutSetAttribute, layout, BATCHES, c.c_int32(batches))
                self.set(lt.cublasLtMatrixLayoutSetAttribute, layout, BATCH_STEP, c.c_int64(side * side))
        self.preference = lt.make("cublasLtMatmulPreferenceCreate")
        self.set(lt.cublasLtMatmulPreferenceSetAttribute, self.preference, WORKSPACE, c.c_uint64(4 << 20))
        self.workspace = device.space(4 << 20)

    def set(self, function, of, what, value):
        function(of, what, c.byref(value), c.c_size_t(c.sizeof(value)))

    def configure(self, what, value):
        self.set(self.lt.cublasLtMatmulDescSetAttribute, self.operation, what, value)

    def choices(self, wanted=4):
        found, count = (Choice * wanted)(), c.c_int()
        a, b, d = self.layouts
        self.lt.cublasLtMatmulAlgoGetHeuristic(self.handle, self.operation, a, b, d, d, self.preference, wanted, found, c.byref(count))
        assert 1 <= count.value <= wanted
        return found[:count.value]

    def run(self, a, b, d, choice=None, one=ONE, zero=ZERO):
        layouts = self.layouts
        algorithm = None if choice is None else c.byref(choice)
        self.lt.cublasLtMatmul(self.handle, self.operation, one, a, layouts[0], b, layouts[1], zero, d, layouts[2], d, layouts[2],
                               algorithm, self.workspace, c.c_size_t(4 << 20), self.device.stream)

    def close(self):
        self.lt.cublasLtMatmulPreferenceDestroy(self.preference)
        for layout in self.layouts:
            self.lt.cublasLtMatrixLayoutDestroy(layout)
        self.lt.cublasLtMatmulDescDestroy(self.operation)


def tour(device):
    lt = Library("cublasLt")
    handle = lt.make("cublasLtCreate")
    for part in (plain, formats, epilogues, batches, transformed) + (() if device.newer else (integers,)):
        part(device, lt, handle)
    a = c.c_void_p()
    lt.refuses(INVALID_VALUE, "cublasLtMatmulDescCreate", None, COMPUTE_32F, R_32F)
    lt.refuses(INVALID_VALUE, "cublasLtMatmul", handle, None, ONE, a, None, a, None, ZERO, a, None, a, None, None, None, c.c_size_t(0), device.stream)
    lt.cublasLtDestroy(handle)


def plain(device, lt, handle):
    a, b = numbers(SIDE * SIDE), numbers(SIDE * SIDE, 2)
    wanted = product(a, b, SIDE, SIDE, SIDE)
    left, right, out = device.floats(a), device.floats(b), device.space(4 * SIDE * SIDE)
    work = Product(device, lt, handle, R_32F)
    choices = work.choices()
    for choice in choices[:2]:
        work.run(left, right, out, choice)
        device.expect(out, wanted)
        checked = Choice()
        x, y, z = work.layouts
        lt.cublasLtMatmulAlgoCheck(handle, work.operation, x, y, z, z, c.byref(choice), c.byref(checked))
        assert checked.state == 0
    work.run(left, right, out)  # the library chooses
    device.expect(out, wanted)
    work.configure(TRANSPOSE_A, c.c_int32(1))
    work.run(left, right, out, work.choices()[0])
    device.expect(out, product(transposed(a, SIDE, SIDE), b, SIDE, SIDE, SIDE))
    work.configure(TRANSPOSE_A, c.c_int32(0))
    choice = work.choices()[0]
    device.captured(lambda: work.run(left, right, out, choice))
    device.expect(out, wanted)
    found, count = (c.c_int * 100)(), c.c_int()
    lt.cublasLtMatmulAlgoGetIds(handle, COMPUTE_32F, R_32F, R_32F, R_32F, R_32F, R_32F, 100, found, c.byref(count))
    assert count.value > 0
    algorithm = (c.c_uint64 * 8)()
    lt.cublasLtMatmulAlgoInit(handle, COMPUTE_32F, R_32F, R_32F, R_32F, R_32F, R_32F, found[0], algorithm)
    work.close()


def formats(device, lt, handle):
    a, b = numbers(SIDE * SIDE), numbers(SIDE * SIDE, 2)
    wanted = product(a, b, SIDE, SIDE, SIDE)
    for code, kind in (("e", R_16F), ("b16", R_16BF)):
        work = Product(device, lt, handle, kind)
        out = device.space(4 * SIDE * SIDE)
        work.run(device.of(code, a), device.of(code, b), out, work.choices()[0])
        device.expect(out, wanted, 2e-2, code)
        work.close()


def integers(device, lt, handle):
    a = [n % 7 - 3 for n in range(SIDE * SIDE)]
    work = Product(device, lt, handle, R_8I, COMPUTE_32I, R_32I, R_32I)
    work.configure(TRANSPOSE_A, c.c_int32(1))
    there, out = device.of("b", a), device.space(4 * SIDE * SIDE)
    work.run(there, there, out, work.choices()[0], c.byref(c.c_int(1)), c.byref(c.c_int(0)))
    device.expect(out, product(transposed(a, SIDE, SIDE), a, SIDE, SIDE, SIDE), code="i")
    work.close()


def epilogues(device, lt, handle):
    a, b, bias = numbers(SIDE * SIDE), numbers(SIDE * SIDE, 2), numbers(SIDE, 3)
    plain_ones = product(a, b, SIDE, SIDE, SIDE)
    with_bias = [value + bias[n % SIDE] for n, value in enumerate(plain_ones)]
    wanted = {
        RELU: [max(0, value) for value in plain_ones],
        PLAIN_BIAS: with_bias,
        RELU_BIAS: [max(0, value) for value in with_bias],
        GELU_BIAS: [0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) for x in with_bias],
    }
    left, right, out, biases = device.of("e", a), device.of("e", b), device.space(4 * SIDE * SIDE), device.of("e", bias)
    for epilogue, results in wanted.items():
        work = Product(device, lt, handle, R_16F)
        work.configure(EPILOGUE, c.c_int32(epilogue))
        if epilogue != RELU:
            work.configure(BIAS, c.c_void_p(biases.value))
        work.run(left, right, out, work.choices()[0])
        device.expect(out, results, 2e-2, "e")
        work.close()


def batches(device, lt, handle):
    side, count = 16, 3
    a = numbers(side * side * count)
    size = side * side
    work = Product(device, lt, handle, R_32F, side=side, batches=count)
    there, out = device.floats(a), device.space(4 * size * count)
    work.run(there, there, out, work.choices()[0])
    device.expect(out, [value for n in range(0, count * size, size) for value in product(a[n:n + size], a[n:n + size], side, side, side)])
    work.close()


def transformed(device, lt, handle):
    a = numbers(SIDE * SIDE)
    description = lt.make("cublasLtMatrixTransformDescCreate", R_32F)
    turn = c.c_int32(1)
    lt.cublasLtMatrixTransformDescSetAttribute(description, 2, c.byref(turn), c.c_size_t(4))  # transposes a
    layout = lt.make("cublasLtMatrixLayoutCreate", R_32F, c.c_uint64(SIDE), c.c_uint64(SIDE), c.c_int64(SIDE))
    out = device.space(4 * SIDE * SIDE)
    lt.cublasLtMatrixTransform(handle, description, ONE, device.floats(a), layout, ZERO, None, None, out, layout, device.stream)
    device.expect(out, transposed(a, SIDE, SIDE))
    lt.cublasLtMatrixLayoutDestroy(layout)
    lt.cublasLtMatrixTransformDescDestroy(description)
