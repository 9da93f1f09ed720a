"""NCCL: a communicator of one rank, and one with a rank on each device; collectives, groups, user buffers, graphs.

Ranks on several devices wait for each other's kernels, so their collectives run only if the device executes kernels.
"""
import ctypes as c

from support import Library

FLOAT, DOUBLE, INT32, HALF, SUM, PRODUCT, MAXIMUM = 7, 8, 2, 6, 0, 1, 2
INVALID_ARGUMENT = 4
COUNT = 1000
MANY = c.c_size_t(COUNT)


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_char * 128)]


def tour(device):
    nccl = Library("nccl")
    assert nccl.ask(c.c_int, "ncclGetVersion") > 20000
    nccl.library.ncclGetErrorString.restype = c.c_char_p
    assert nccl.library.ncclGetErrorString(INVALID_ARGUMENT)
    name = UniqueId()
    nccl.ncclGetUniqueId(c.byref(name))
    communicator = nccl.make("ncclCommInitRank", 1, name, 0)
    for what, wanted in (("ncclCommCount", 1), ("ncclCommUserRank", 0), ("ncclCommCuDevice", 0), ("ncclCommGetAsyncError", 0)):
        assert nccl.ask(c.c_int, what, communicator) == wanted
    for part in (collectives, grouped, buffers, captured, divided, wrong):
        part(device, nccl, communicator)
    nccl.ncclCommFinalize(communicator)
    nccl.ncclCommDestroy(communicator)
    if device.count() > 1:
        together(device, nccl)


def collectives(device, nccl, communicator):
    values, stream = list(range(COUNT)), device.stream
    there = device.floats(values)
    for name, words in (("ncclAllReduce", (MANY, FLOAT, SUM)), ("ncclBroadcast", (MANY, FLOAT, 0)), ("ncclReduce", (MANY, FLOAT, MAXIMUM, 0)),
                        ("ncclAllGather", (MANY, FLOAT)), ("ncclReduceScatter", (MANY, FLOAT, PRODUCT))):
        out = device.floats([0] * COUNT)
        getattr(nccl, name)(there, out, *words, communicator, stream)
        device.expect(out, values)
    for code, kind in (("d", DOUBLE), ("i", INT32), ("e", HALF)):
        there, out = device.of(code, values), device.of(code, [0] * COUNT)
        nccl.ncclAllReduce(there, out, MANY, kind, SUM, communicator, stream)
        device.expect(out, values, code=code)


def grouped(device, nccl, communicator):
    there, out = device.floats(range(COUNT)), device.floats([0] * COUNT)
    nccl.ncclGroupStart()
    nccl.ncclSend(there, MANY, FLOAT, 0, communicator, device.stream)
    nccl.ncclRecv(out, MANY, FLOAT, 0, communicator, device.stream)
    nccl.ncclGroupEnd()
    device.expect(out, list(range(COUNT)))
    factor = c.c_int()
    nccl.ncclRedOpCreatePreMulSum(c.byref(factor), c.byref(c.c_float(3)), FLOAT, 1, communicator)
    nccl.ncclAllReduce(there, out, MANY, FLOAT, factor.value, communicator, device.stream)
    device.expect(out, [3 * n for n in range(COUNT)])
    nccl.ncclRedOpDestroy(factor, communicator)


def buffers(device, nccl, communicator):
    memory, handle = nccl.make("ncclMemAlloc", c.c_size_t(1 << 20)), c.c_void_p()
    nccl.ncclCommRegister(communicator, memory, c.c_size_t(1 << 20), c.byref(handle))
    nccl.ncclAllReduce(memory, memory, MANY, FLOAT, SUM, communicator, device.stream)
    device.runtime.cudaStreamSynchronize(device.stream)
    nccl.ncclCommDeregister(communicator, handle)
    nccl.ncclMemFree(memory)


def captured(device, nccl, communicator):
    there, out = device.floats(range(COUNT)), device.floats([0] * COUNT)
    device.captured(lambda: nccl.ncclAllReduce(there, out, MANY, FLOAT, SUM, communicator, device.stream))
    device.expect(out, list(range(COUNT)))


def divided(device, nccl, communicator):
    part = c.c_void_p()
    nccl.ncclCommSplit(communicator, 0, 0, c.byref(part), None)
    there, out = device.floats(range(COUNT)), device.floats([0] * COUNT)
    nccl.ncclAllReduce(there, out, MANY, FLOAT, SUM, part, device.stream)
    device.expect(out, list(range(COUNT)))
    nccl.ncclCommDestroy(part)


def wrong(device, nccl, communicator):
    there = device.space(64)
    nccl.refuses(INVALID_ARGUMENT, "ncclAllReduce", there, there, c.c_size_t(4), 99, SUM, communicator, device.stream)
    nccl.refuses(INVALID_ARGUMENT, "ncclBroadcast", there, there, c.c_size_t(4), FLOAT, 5, communicator, device.stream)
    nccl.refuses(INVALID_ARGUMENT, "ncclCommInitRank", c.byref(c.c_void_p()), 1, UniqueId(), 3)


def together(device, nccl):
    """A communicator with one rank on each device, all in this thread."""
    count = device.count()
    ranks, streams, memory = (c.c_void_p * count)(), [], []
    nccl.ncclCommInitAll(ranks, count, None)
    for n in range(count):
        device.runtime.cudaSetDevice(n)
        streams.append(device.runtime.make("cudaStreamCreate"))
        memory.append(device.floats([n + 1.0] * COUNT))
    for name, words in () if not device.computes else (("ncclAllReduce", (SUM,)), ("ncclAllGather", ()), ("ncclBroadcast", (0,))):
        nccl.ncclGroupStart()
        for n in range(count):
            size = c.c_size_t(COUNT // count if name == "ncclAllGather" else COUNT)
            out = c.c_void_p(memory[n].value)
            source = c.c_void_p(memory[n].value + (n * size.value * 4 if name == "ncclAllGather" else 0))
            getattr(nccl, name)(source, out, size, FLOAT, *words, c.c_void_p(ranks[n]), streams[n])
        nccl.ncclGroupEnd()
    for n in range(count):
        device.runtime.cudaSetDevice(n)
        device.expect(memory[n], [count * (count + 1) / 2] * COUNT, stream=streams[n])
    for n in range(count):
        device.runtime.cudaSetDevice(n)
        nccl.ncclCommDestroy(c.c_void_p(ranks[n]))
    device.runtime.cudaSetDevice(0)
