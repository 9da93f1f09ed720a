"""NCCL between two processes on this machine, started by pool-run, whose GPUs are on two servers: NCCL must treat them as two hosts and
use sockets. `nccl_servers.py BUILD`. Exit status 77: NCCL is not installed.
"""
import ctypes as c
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from pool import Pool  # noqa: E402
from support import Device, Library, Missing  # noqa: E402

RANKS = 2
FLOAT, SUM = 7, 0
PATIENCE = 120  # seconds


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_byte * 128)]


def rank(number, name):
    Library("cudart").cudaSetDevice(0)
    device, nccl = Device(), Library("nccl")
    communicator = nccl.make("ncclCommInitRank", RANKS, UniqueId.from_buffer_copy(bytes.fromhex(name)), number)
    values, out = device.floats(range(1000)), device.floats([0] * 1000)
    nccl.ncclAllReduce(values, out, c.c_size_t(1000), FLOAT, SUM, communicator, device.stream)
    device.runtime.cudaStreamSynchronize(device.stream)
    os._exit(0)  # skipped kernels have sent nothing, and destroying the communicator would wait for the data


def main(build):
    try:
        nccl, name = Library("nccl"), UniqueId()
    except Missing as missing:
        print(f"skipped: {missing}")
        return 77
    settings = {"SOFTGPU_SKIP_MACHINE_CODE": "1", "SOFTGPU_MEMORY": "1GiB"}
    pool = lambda n: Pool(build / "bin", build / "lib" / "client", settings={**settings, "SOFTGPU_INSTANCE": f"nccl-{os.getpid()}-{n}"})
    nccl.ncclGetUniqueId(c.byref(name))
    with tempfile.TemporaryFile("w+") as said, pool(0) as first, pool(1) as second:
        command = [build / "bin" / "pool-run", "--", sys.executable, __file__, "rank"]
        processes = [subprocess.Popen([*command, str(n), bytes(name).hex()], env=server.environment(**settings, NCCL_DEBUG="INFO"),
                                      stdout=said, stderr=said) for n, server in enumerate((first, second))]
        try:
            statuses = [process.wait(PATIENCE) for process in processes]
        finally:
            for process in processes:
                process.kill()
        said.seek(0)
        text = said.read()
    if any(statuses) or "via NET/Socket" not in text or "via P2P" in text:
        print(text)
        return 1
    print("processes with GPUs of two servers use sockets")
    return 0


if __name__ == "__main__":
    sys.exit(rank(int(sys.argv[2]), sys.argv[3]) if sys.argv[1] == "rank" else main(pathlib.Path(sys.argv[1])))
