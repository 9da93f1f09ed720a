"""Tests processes started with multiprocessing's spawn that use each other's device memory through CUDA IPC, as PyTorch's
do; CuPy calls cudaIpcGetMemHandle and related functions."""
import ctypes
import multiprocessing
import unittest

import cupy as cp
import numpy as np

import cases

runtime = cp.cuda.runtime
spawn = multiprocessing.get_context("spawn")
PATIENCE = 120  # seconds
COUNT = 100_000


def share(array):
    """Returns the arguments of Opened() in another process: the allocation's handle, the array's offset in it, shape and dtype."""
    pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2(ctypes.byref(pointer), ctypes.byref(size), ctypes.c_uint64(array.data.ptr))
    assert status == 0, status
    return runtime.ipcGetMemHandle(pointer.value), array.data.ptr - pointer.value, array.shape, array.dtype.str


class Opened:
    """Opens an array of another process for the duration of `with`."""

    def __init__(self, handle, offset, shape, dtype):
        self.base = runtime.ipcOpenMemHandle(handle)
        dtype = np.dtype(dtype)
        memory = cp.cuda.UnownedMemory(self.base, offset + int(np.prod(shape)) * dtype.itemsize, self)
        self.array = cp.ndarray(shape, dtype, cp.cuda.MemoryPointer(memory, offset))

    def __enter__(self):
        return self.array

    def __exit__(self, *_):
        runtime.ipcCloseMemHandle(self.base)


def receive(connection):
    if not connection.poll(PATIENCE):
        raise TimeoutError("no answer from the other process")
    return connection.recv()


def add_when_recorded(connection, number):
    """Adds to the sender's array after its event, without waiting on the host, and records an event of its own."""
    shared, event = receive(connection)
    theirs = runtime.ipcOpenEventHandle(event)
    done = cp.cuda.Event(disable_timing=True, interprocess=True)
    with Opened(*shared) as values, cp.cuda.Stream(non_blocking=True) as stream:
        runtime.streamWaitEvent(stream.ptr, theirs)
        values += number
        done.record(stream)
        connection.send(runtime.ipcGetEventHandle(done.ptr))
        receive(connection)  # a destroyed event could not be opened
        stream.synchronize()
    runtime.eventDestroy(theirs)


def offer(connection):
    values = cp.arange(COUNT, dtype=np.float64)
    cp.cuda.Device().synchronize()
    connection.send(share(values))
    receive(connection)  # until it is killed


def square_rows(shared, row):
    with Opened(*shared) as matrix:
        matrix[row] *= matrix[row]
        cp.cuda.Device().synchronize()
    return row


class Processes(unittest.TestCase):
    def started(self, target, *arguments):
        here, there = spawn.Pipe()
        process = spawn.Process(target=target, args=(there, *arguments), daemon=True)
        process.start()
        there.close()  # so that the connection ends when the process exits
        self.addCleanup(here.close)
        return process, here

    def test_memory_and_events(self):
        filler = cp.zeros(100)  # so that the array is not at the start of its allocation
        values = cp.zeros(COUNT, np.float32)
        recorded = cp.cuda.Event(disable_timing=True, interprocess=True)
        cp.cuda.Device().synchronize()
        for number in (3, 4):
            process, connection = self.started(add_when_recorded, number)
            with cp.cuda.Stream(non_blocking=True) as stream:
                for _ in range(20):
                    values += 1
                recorded.record(stream)
                connection.send((share(values), runtime.ipcGetEventHandle(recorded.ptr)))
                theirs = runtime.ipcOpenEventHandle(receive(connection))
                runtime.streamWaitEvent(stream.ptr, theirs)
                values *= 2
                stream.synchronize()
            connection.send("over")
            process.join(PATIENCE)
            self.assertEqual(process.exitcode, 0)
            runtime.eventDestroy(theirs)
        np.testing.assert_array_equal(cp.asnumpy(values), ((20 + 3) * 2 + 20 + 4) * 2)
        np.testing.assert_array_equal(cp.asnumpy(filler), 0)

    def test_memory_outlives_the_process_that_made_it(self):
        process, connection = self.started(offer)
        shared = receive(connection)
        with Opened(*shared) as values:
            process.kill()
            process.join(PATIENCE)
            np.testing.assert_array_equal(cp.asnumpy(values), np.arange(COUNT))
            values += 1
            self.assertEqual(float(values.sum()), COUNT * (COUNT + 1) / 2)
        with self.assertRaises(runtime.CUDARuntimeError):
            runtime.ipcOpenMemHandle(shared[0])

    def test_pool_of_workers(self):
        matrix = cp.tile(cp.arange(1000, dtype=np.int64), (6, 1))
        cp.cuda.Device().synchronize()
        with spawn.Pool(3) as workers:
            self.assertEqual(workers.starmap(square_rows, [(share(matrix), row) for row in range(6)], 1), list(range(6)))
        np.testing.assert_array_equal(cp.asnumpy(matrix), np.tile(np.arange(1000) ** 2, (6, 1)))

    def test_a_process_does_not_open_its_own(self):
        with self.assertRaises(runtime.CUDARuntimeError):
            runtime.ipcOpenMemHandle(share(cp.zeros(10))[0])


if __name__ == "__main__":
    cases.main()
