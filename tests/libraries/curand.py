"""cuRAND: every kind of generator on the device, compared with the same generator on the host."""
import ctypes as c

from support import Library, threads

XORWOW, MRG32K3A, MTGP32, MT19937, PHILOX = 101, 121, 141, 142, 161
SOBOL32, SCRAMBLED32, SOBOL64, SCRAMBLED64 = 201, 202, 203, 204
COUNT = 3000
NOT_INITIALIZED, TYPE_ERROR, OUT_OF_RANGE, LENGTH_NOT_MULTIPLE = 101, 103, 104, 105
MANY = c.c_size_t(COUNT)


def tour(device):
    rand = Library("curand")
    assert rand.ask(c.c_int, "curandGetVersion") >= 10000
    for kind in (XORWOW, MRG32K3A, MTGP32, MT19937, PHILOX):
        if kind == MT19937 and device.soft and device.computes:
            continue  # on softgpu it takes more than a minute to start
        generator, host = started(rand, "", kind, device), started(rand, "Host", kind, device)
        for one in (generator, host):
            rand.curandSetPseudoRandomGeneratorSeed(one, c.c_ulonglong(7))
            if kind in (XORWOW, MRG32K3A, PHILOX):
                rand.curandSetGeneratorOffset(one, c.c_ulonglong(3))
        compared(device, rand, generator, host, quasi=False)
    for kind in (SOBOL32, SCRAMBLED32, SOBOL64, SCRAMBLED64):
        generator, host = started(rand, "", kind, device), started(rand, "Host", kind, device)
        for one in (generator, host):
            rand.curandSetQuasiRandomGeneratorDimensions(one, 3)
        compared(device, rand, generator, host, quasi=True, wide=kind in (SOBOL64, SCRAMBLED64))
    captured(device, rand)
    wrong(device, rand)
    threads(3, lambda n: alone(device, rand, n))


def started(rand, where, kind, device):
    generator = rand.make(f"curandCreateGenerator{where}", kind)
    if not where:
        rand.curandSetStream(generator, device.stream)
    return generator


def compared(device, rand, generator, host, quasi, wide=False):
    there = device.space(8 * COUNT)
    f, d = c.c_float, c.c_double
    calls = [("curandGenerateUniform", f, "f", ()), ("curandGenerateUniformDouble", d, "d", ()),
             ("curandGenerateNormal", f, "f", (f(1), f(2))), ("curandGenerateNormalDouble", d, "d", (d(1), d(2))),
             ("curandGenerateLogNormal", f, "f", (f(0), f(0.5)))]
    if not wide:
        calls += [("curandGenerate", c.c_uint, "I", ()), ("curandGeneratePoisson", c.c_uint, "I", (d(4),))]
    else:
        calls += [("curandGenerateLongLong", c.c_ulonglong, "Q", ())]
    for name, kind, code, words in calls:
        wanted = (kind * COUNT)()
        getattr(rand, name)(generator, there, MANY, *words)
        getattr(rand, name)(host, wanted, MANY, *words)
        got = device.read(there, COUNT, code)
        device.same(got, list(wanted), 1e-3)
    rand.curandDestroyGenerator(generator)
    rand.curandDestroyGenerator(host)


def captured(device, rand):
    generator, there = started(rand, "", PHILOX, device), device.space(4 * COUNT)
    rand.curandGenerateSeeds(generator)
    device.captured(lambda: rand.curandGenerateUniform(generator, there, MANY))
    got = device.read(there, COUNT)
    assert not device.computes or 0.45 < sum(got) / COUNT < 0.55
    rand.curandDestroyGenerator(generator)


def wrong(device, rand):
    there = device.space(64)
    rand.refuses(NOT_INITIALIZED, "curandGenerateUniform", None, there, c.c_size_t(4))
    rand.refuses(TYPE_ERROR, "curandCreateGenerator", c.byref(c.c_void_p()), 12345)
    generator = rand.make("curandCreateGenerator", SOBOL32)
    rand.refuses(OUT_OF_RANGE, "curandSetQuasiRandomGeneratorDimensions", generator, 1_000_000)
    rand.curandSetQuasiRandomGeneratorDimensions(generator, 3)
    rand.refuses(LENGTH_NOT_MULTIPLE, "curandGenerateUniform", generator, there, c.c_size_t(4))
    rand.curandDestroyGenerator(generator)


def alone(device, rand, n):
    stream = device.runtime.make("cudaStreamCreateWithFlags", 1)
    generator, there = rand.make("curandCreateGenerator", PHILOX), device.space(4 * COUNT)
    rand.curandSetStream(generator, stream)
    rand.curandSetPseudoRandomGeneratorSeed(generator, c.c_ulonglong(n))
    for _ in range(3):
        rand.curandGenerateUniform(generator, there, MANY)
    got = device.read(there, COUNT, stream=stream)
    assert not device.computes or 0.45 < sum(got) / COUNT < 0.55
    rand.curandDestroyGenerator(generator)
    device.runtime.cudaStreamDestroy(stream)
