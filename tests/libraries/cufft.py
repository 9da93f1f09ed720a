"""cuFFT: complex and real, single and double precision, 1 to 3 dimensions, batches, layouts, workspaces, graphs, threads."""
import cmath
import ctypes as c
import math

from support import Library, numbers, threads

R2C, C2R, C2C, D2Z, Z2D, Z2Z = 0x2a, 0x2c, 0x29, 0x6a, 0x6c, 0x69
FORWARD, INVERSE = -1, 1
INVALID_PLAN, INVALID_VALUE, INVALID_SIZE = 1, 4, 8
SMALL = (2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 20, 31, 32, 45, 64)  # compared with the definition
LARGE = (97, 100, 128, 243, 256, 1000, 1009, 1024, 4096, 6561, 16384)  # forward and inverse; 1009 is prime


def tour(device):
    fft = Library("cufft")
    assert fft.ask(c.c_int, "cufftGetVersion") >= 10000
    for part in (sizes, precisions, dimensions, layouts, workspaces, captured, halves, wrong):
        part(device, fft)
    threads(3, lambda n: alone(device, fft, n))


class Plan:
    def __init__(self, device, fft, name, *words):
        self.fft, self.number = fft, c.c_int()
        fft.__getattr__(name)(c.byref(self.number), *words)
        fft.cufftSetStream(self.number, device.stream)

    def run(self, name, *words):
        self.fft.__getattr__(name)(self.number, *words)

    def close(self):
        self.fft.cufftDestroy(self.number)


def pairs(values):
    return [part for value in values for part in (value.real, value.imag)]


def transform(values, sign=FORWARD):
    """Computes the transform by its definition."""
    count = len(values)
    roots = [cmath.exp(sign * 2j * math.pi * n / count) for n in range(count)]
    return [sum(value * roots[n * k % count] for n, value in enumerate(values)) for k in range(count)]


def complexes(count, seed=1):
    values = numbers(2 * count, seed)
    return [complex(*pair) for pair in zip(values[::2], values[1::2])]


def sizes(device, fft):
    for count in SMALL:
        batch = 3
        rows = [complexes(count, n + 1) for n in range(batch)]
        plan = Plan(device, fft, "cufftPlan1d", count, C2C, batch)
        values = device.floats(pairs([value for row in rows for value in row]))
        plan.run("cufftExecC2C", values, values, FORWARD)
        device.expect(values, pairs([value for row in rows for value in transform(row)]), 1e-3)
        plan.close()
    for count in LARGE:
        given = complexes(count)
        plan = Plan(device, fft, "cufftPlan1d", count, C2C, 1)
        values = device.floats(pairs(given))
        plan.run("cufftExecC2C", values, values, FORWARD)
        device.same(device.read(values, 2), pairs([sum(given)]), 1e-2)
        plan.run("cufftExecC2C", values, values, INVERSE)
        device.same([value / count for value in device.read(values, 2 * count)], pairs(given), 1e-3)
        plan.close()


def precisions(device, fft):
    count = 48
    given = complexes(count)
    real = [value.real for value in given]
    half = transform([complex(value) for value in real])[:count // 2 + 1]
    for code, there, back, names, all_ in (("f", R2C, C2R, ("cufftExecR2C", "cufftExecC2R"), (C2C, "cufftExecC2C")),
                                           ("d", D2Z, Z2D, ("cufftExecD2Z", "cufftExecZ2D"), (Z2Z, "cufftExecZ2Z"))):
        values, spectrum = device.of(code, real), device.space(16 * count)
        plan = Plan(device, fft, "cufftPlan1d", count, there, 1)
        plan.run(names[0], values, spectrum)
        device.expect(spectrum, pairs(half), 1e-3, code)
        plan.close()
        plan = Plan(device, fft, "cufftPlan1d", count, back, 1)
        plan.run(names[1], spectrum, values)
        device.same([value / count for value in device.read(values, count, code)], real, 1e-3)
        plan.close()
        values = device.of(code, pairs(given))
        plan = Plan(device, fft, "cufftPlan1d", count, all_[0], 1)
        plan.run(all_[1], values, spectrum, FORWARD)
        device.expect(spectrum, pairs(transform(given)), 1e-3, code)
        plan.close()


def dimensions(device, fft):
    for shape in ((8, 12), (16, 16), (5, 7), (64, 32), (4, 6, 8), (16, 16, 16)):
        count = math.prod(shape)
        given = complexes(count)
        plan = Plan(device, fft, f"cufftPlan{len(shape)}d", *shape, C2C)
        values = device.floats(pairs(given))
        plan.run("cufftExecC2C", values, values, FORWARD)
        device.same(device.read(values, 2), pairs([sum(given)]), 1e-2)
        if shape == (8, 12):
            rows = [transform(given[n:n + 12]) for n in range(0, 96, 12)]
            columns = [transform([row[n] for row in rows]) for n in range(12)]
            device.expect(values, pairs([columns[n][m] for m in range(8) for n in range(12)]), 1e-3)
        plan.run("cufftExecC2C", values, values, INVERSE)
        device.same([value / count for value in device.read(values, 2 * count)], pairs(given), 1e-3)
        plan.close()
        real, spectrum = device.floats(value.real for value in given), device.space(8 * count * 2)
        for kind, words in ((R2C, ("cufftExecR2C", real, spectrum)), (C2R, ("cufftExecC2R", spectrum, real))):
            plan = Plan(device, fft, f"cufftPlan{len(shape)}d", *shape, kind)
            plan.run(*words)
            plan.close()
        device.same([value / count for value in device.read(real, count)], [value.real for value in given], 1e-3)


def layouts(device, fft):
    """Interleaved signals: element n of signal k is at n * batch + k."""
    count, batch = 24, 5
    rows = [complexes(count, k + 1) for k in range(batch)]
    shape = (c.c_int * 1)(count)
    plan = Plan(device, fft, "cufftPlanMany", 1, shape, shape, batch, 1, shape, batch, 1, C2C, batch)
    values = device.floats(pairs([rows[k][n] for n in range(count) for k in range(batch)]))
    plan.run("cufftExecC2C", values, values, FORWARD)
    results = [transform(row) for row in rows]
    device.expect(values, pairs([results[k][n] for n in range(count) for k in range(batch)]), 1e-3)
    plan.close()


def workspaces(device, fft):
    count = 6000
    plan, size = Plan(device, fft, "cufftCreate"), c.c_size_t()
    plan.run("cufftSetAutoAllocation", 0)
    plan.run("cufftMakePlan1d", count, C2C, 2, c.byref(size))
    got = c.c_size_t()
    plan.run("cufftGetSize", c.byref(got))
    assert got.value == size.value
    fft.cufftEstimate1d(count, C2C, 2, c.byref(got))
    plan.run("cufftSetWorkArea", device.space(size.value))
    given = complexes(count)
    values = device.floats(pairs(given * 2))
    for sign in (FORWARD, INVERSE):
        plan.run("cufftExecC2C", values, values, sign)
    device.same([value / count for value in device.read(values, 4 * count)], pairs(given * 2), 1e-3)
    plan.close()
    plan = Plan(device, fft, "cufftCreate")
    plan.run("cufftMakePlanMany64", 1, (c.c_longlong * 1)(16), None, c.c_longlong(1), c.c_longlong(16), None, c.c_longlong(1), c.c_longlong(16), C2C, c.c_longlong(2), c.byref(size))
    plan.close()


def captured(device, fft):
    count = 128
    given = complexes(count)
    plan = Plan(device, fft, "cufftPlan1d", count, C2C, 1)
    values, out = device.floats(pairs(given)), device.space(8 * count)
    device.captured(lambda: plan.run("cufftExecC2C", values, out, FORWARD))
    device.expect(out, pairs(transform(given)), 1e-3)
    plan.close()


def halves(device, fft):
    count, half = 64, 6  # CUDA_C_16F
    given = complexes(count)
    plan, size = Plan(device, fft, "cufftCreate"), c.c_size_t()
    plan.run("cufftXtMakePlanMany", 1, (c.c_longlong * 1)(count), None, c.c_longlong(1), c.c_longlong(count), half,
             None, c.c_longlong(1), c.c_longlong(count), half, c.c_longlong(1), c.byref(size), half)
    values = device.of("e", pairs(given))
    plan.run("cufftXtExec", values, values, FORWARD)
    device.expect(values, pairs(transform(given)), 5e-2, "e")
    plan.close()


def wrong(device, fft):
    number = c.c_int()
    fft.refuses(INVALID_SIZE if device.runtime_version >= 12000 else INVALID_VALUE, "cufftPlan1d", c.byref(number), 0, C2C, 1)
    fft.refuses(INVALID_PLAN, "cufftExecC2C", 12345, None, None, FORWARD)
    fft.refuses(INVALID_PLAN, "cufftDestroy", 12345)


def alone(device, fft, n):
    count = 32 << n
    given = complexes(count, n + 1)
    stream = device.runtime.make("cudaStreamCreateWithFlags", 1)
    plan = Plan(device, fft, "cufftPlan1d", count, C2C, 1)
    fft.cufftSetStream(plan.number, stream)
    values = device.floats(pairs(given))
    for _ in range(4):
        plan.run("cufftExecC2C", values, values, FORWARD)
        plan.run("cufftExecC2C", values, values, INVERSE)
    device.same([value / count ** 4 for value in device.read(values, 2 * count, stream=stream)], pairs(given), 1e-2)
    plan.close()
    device.runtime.cudaStreamDestroy(stream)
