"""Programs of the parts `memory` and `sharing`: `programs.py NAME [WORDS...]`, using the libcuda.so.1 of the environment.

    fill            allocates all memory in pieces, twice, and continues to work
    hold PERCENT    allocates this part of the free memory and keeps it; for each line on standard input it writes to all of it and answers
    free            answers each line on standard input with the number of free bytes
    torch_fill      the same as fill with PyTorch tensors of eight streams, and then a matrix product
"""
import ctypes
import json
import sys
import time

OUT_OF_MEMORY = 2
MiB = 1 << 20


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *words):
        result = getattr(self.library, name)(*words)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    def memory(self):
        """Returns the free and the total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size):
        """Returns the address, or None if there is not enough memory."""
        address = ctypes.c_uint64()
        result = self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if result == OUT_OF_MEMORY:
            return None
        if result:
            raise RuntimeError(f"cuMemAlloc: error {result}")
        return address.value

    def write(self, address, size):
        self.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0x5a), ctypes.c_size_t(size))

    def check(self, address):
        word = ctypes.c_uint32()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(address), ctypes.c_size_t(4))
        if word.value != 0x5a5a5a5a:
            raise RuntimeError(f"memory has {word.value:#x}, not what was written")

    def free(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))


def fill():
    driver = Driver()
    free, total = driver.memory()
    size = max(2 * MiB, total // 64 // (2 * MiB) * 2 * MiB)
    seen = {"piece_MiB": size // MiB, "free_MiB": free // MiB, "pieces": [], "seconds": []}
    for _ in range(2):
        begin, taken = time.monotonic(), []
        while True:
            address = driver.take(size)
            if address is None:
                break
            driver.write(address, size)
            taken.append(address)
        for address in taken:
            driver.check(address)
        seen["pieces"].append(len(taken))
        seen["seconds"].append(time.monotonic() - begin)
        for address in taken:
            driver.free(address)
        address = driver.take(4096)  # the program can still work after an allocation failed
        driver.write(address, 4096)
        driver.check(address)
        driver.free(address)
    if seen["pieces"][1] < seen["pieces"][0]:
        raise RuntimeError(f"freed memory does not come back: {seen['pieces']} pieces")
    print(json.dumps(seen))


def hold(percent):
    driver = Driver()
    free, _ = driver.memory()
    size = max(2 * MiB, free // 64 // (2 * MiB) * 2 * MiB)
    taken, wanted = [], free * int(percent) // 100
    while (len(taken) + 1) * size <= wanted:
        address = driver.take(size)
        if address is None:
            break
        taken.append(address)
    for address in taken:
        driver.write(address, size)
    driver.call("cuCtxSynchronize")
    print(len(taken) * size, flush=True)
    for _ in sys.stdin:
        for address in taken:
            driver.write(address, size)
            driver.check(address)
        print("written", flush=True)


def free():
    driver = Driver()
    print(driver.memory()[0], flush=True)
    for _ in sys.stdin:
        print(driver.memory()[0], flush=True)


def torch_fill():
    try:
        import torch
    except ImportError as missing:
        return print(json.dumps({"skipped": str(missing)}))
    if not torch.cuda.is_available():
        return print(json.dumps({"skipped": "this PyTorch has no CUDA device"}))
    streams = [torch.cuda.Stream() for _ in range(8)]
    total = torch.cuda.mem_get_info()[1]
    seen = {"backend": torch.cuda.get_allocator_backend(), "pieces": [], "seconds": []}
    for _ in range(2):
        begin, taken = time.monotonic(), []
        try:
            while True:
                with torch.cuda.stream(streams[len(taken) % len(streams)]):
                    taken.append(torch.ones(total // 64, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
        torch.cuda.synchronize()
        if not all(int(piece[-1]) == 1 for piece in taken):
            raise RuntimeError("a tensor has not what was written")
        seen["pieces"].append(len(taken))
        seen["seconds"].append(time.monotonic() - begin)
        del taken
        matrix = torch.ones(256, 256, device="cuda")
        if float((matrix @ matrix)[0, 0]) != 256:
            raise RuntimeError("a matrix product is wrong after the memory was full")
        torch.cuda.empty_cache()
    print(json.dumps(seen))


if __name__ == "__main__":
    {"fill": fill, "hold": hold, "free": free, "torch_fill": torch_fill}[sys.argv[1]](*sys.argv[2:])
