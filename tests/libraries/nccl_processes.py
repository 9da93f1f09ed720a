"""NCCL between two processes, each with one GPU, that share device memory: `nccl_processes.py`, with the driver in LD_LIBRARY_PATH.
Exit status 77: NCCL is not installed, or there is only one GPU.
"""
import ctypes as c
import multiprocessing
import os
import sys
import tempfile

from support import Device, Library, Missing

RANKS = 2
FLOAT, SUM = 7, 0
PATIENCE = 120  # seconds


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_byte * 128)]


def work(rank, name):
    Library("cudart").cudaSetDevice(rank)
    device, collectives = Device(), Library("nccl")
    communicator = collectives.make("ncclCommInitRank", RANKS, UniqueId.from_buffer_copy(name), rank)
    values, out = device.floats(range(rank, 1000 + rank)), device.floats([0] * 1000)
    collectives.ncclAllReduce(values, out, c.c_size_t(1000), FLOAT, SUM, communicator, device.stream)
    device.expect(out, [2 * n + 1 for n in range(1000)])
    collectives.ncclCommFinalize(communicator)
    collectives.ncclCommDestroy(communicator)
    device.runtime.cudaDeviceSynchronize()


def main():
    try:
        collectives, count = Library("nccl"), c.c_int()
        Library("cudart").cudaGetDeviceCount(c.byref(count))
    except Missing as missing:
        print(f"skipped: {missing}")
        return 77
    if count.value < RANKS:
        print("skipped: there is one GPU")
        return 77
    name = UniqueId()
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log + ".%p")
        collectives.ncclGetUniqueId(c.byref(name))
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=work, args=(rank, bytes(name)), daemon=True) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
        said = "".join(open(os.path.join(folder, file)).read() for file in os.listdir(folder))
    if any(process.exitcode != 0 for process in processes) or said.count("via P2P/CUMEM") < RANKS:
        print(said)
        return 1
    print("the processes of a communicator share memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
