"""Tests Numba's arrays, streams and events against NumPy."""
import gc
import threading
import unittest
import warnings

import numpy as np
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

import cases

warnings.simplefilter("ignore", NumbaPerformanceWarning)


@cuda.jit
def add_to(values, amount):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += amount


def bump(values, amount=1, stream=0):
    add_to[(values.size + 127) // 128, 128, stream](values, amount)


class Memory(unittest.TestCase):
    def test_the_device(self):
        device = cuda.get_current_device()
        self.assertTrue(cuda.is_available())
        self.assertGreaterEqual(device.compute_capability, (5, 0))
        self.assertGreater(device.MULTIPROCESSOR_COUNT, 0)
        self.assertEqual(device.WARP_SIZE, 32)
        free, total = cuda.current_context().get_memory_info()
        self.assertLessEqual(free, total)
        self.assertTrue(device.uuid.startswith("GPU-"))

    def test_arrays_there_and_back(self):
        for shape, order in (((1000,), "C"), ((17, 31), "C"), ((17, 31), "F"), ((3, 5, 7), "F"), ((), "C"), ((0,), "C")):
            there = np.asarray(np.random.default_rng(1).random(shape), order=order)
            np.testing.assert_array_equal(cuda.to_device(there).copy_to_host(), there)

    def test_slices(self):
        there = np.arange(240).reshape(12, 20)
        device = cuda.to_device(there)
        np.testing.assert_array_equal(device[3].copy_to_host(), there[3])
        np.testing.assert_array_equal(device[2:5].copy_to_host(), there[2:5])
        self.assertEqual(device[4, 7], 87)
        device[5] = np.arange(20)
        device[0, 0] = 42
        there[5], there[0, 0] = np.arange(20), 42
        np.testing.assert_array_equal(device.copy_to_host(), there)
        np.testing.assert_array_equal(device.reshape(20, 12).copy_to_host(), there.reshape(20, 12))
        np.testing.assert_array_equal(device.ravel().copy_to_host(), there.ravel())

    def test_copies_between_arrays(self):
        first, second = cuda.to_device(np.arange(100)), cuda.device_array(100, np.int64)
        second.copy_to_device(first)
        bump(first)
        np.testing.assert_array_equal(second.copy_to_host(), np.arange(100))
        second[50:].copy_to_device(first[:50])
        np.testing.assert_array_equal(second.copy_to_host(), [*range(50), *range(1, 51)])

    def test_a_large_array(self):
        there = np.random.default_rng(2).integers(0, 255, 40 << 20, dtype=np.uint8)
        device = cuda.to_device(there)
        back = np.empty_like(there)
        device.copy_to_host(back)
        self.assertTrue((back == there).all())

    def test_pinned_arrays_and_streams(self):
        streams = [cuda.stream() for _ in range(3)]
        pinned = [cuda.pinned_array(50_000, np.float32) for _ in streams]
        results = [cuda.pinned_array_like(array) for array in pinned]
        devices = [cuda.device_array(50_000, np.float32, stream=stream) for stream in streams]
        for n, (stream, array, device, result) in enumerate(zip(streams, pinned, devices, results)):
            array[:] = n
            device.copy_to_device(array, stream=stream)
            for _ in range(4):
                bump(device, 1, stream)
            device.copy_to_host(result, stream=stream)
        for n, (stream, result) in enumerate(zip(streams, results)):
            stream.synchronize()
            np.testing.assert_array_equal(result, n + 4)

    def test_memory_pinned_for_a_while(self):
        values = np.arange(10_000)
        stream = cuda.stream()
        with cuda.pinned(values):
            with stream.auto_synchronize():
                device = cuda.to_device(values, stream=stream)
                bump(device, 5, stream)
                device.copy_to_host(values, stream=stream)
        np.testing.assert_array_equal(values, np.arange(10_000) + 5)

    def test_events(self):
        stream, other = cuda.stream(), cuda.stream()
        begin, end = cuda.event(), cuda.event()
        values = cuda.to_device(np.zeros(200_000), stream=stream)
        begin.record(stream)
        for _ in range(10):
            bump(values, 1, stream)
        end.record(stream)
        end.wait(other)
        bump(values, 100, other)
        other.synchronize()
        self.assertTrue(end.query())
        self.assertGreater(cuda.event_elapsed_time(begin, end), 0)
        self.assertTrue((values.copy_to_host() == 110).all())

    def test_default_and_per_thread_streams(self):
        values = cuda.to_device(np.zeros(1000))
        for stream in (cuda.default_stream(), cuda.legacy_default_stream(), cuda.per_thread_default_stream()):
            bump(values, 1, stream)
            stream.synchronize()
        self.assertTrue((values.copy_to_host() == 3).all())

    def test_threads(self):
        arrays = [cuda.to_device(np.full(5000, n)) for n in range(6)]
        failures = []

        def work(array):
            try:
                stream = cuda.stream()
                for _ in range(20):
                    bump(array, 1, stream)
                stream.synchronize()
            except Exception as failure:  # checked below: an exception in a thread does not fail the test
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        for n, array in enumerate(arrays):
            self.assertTrue((array.copy_to_host() == n + 20).all())

    def test_memory_is_given_back(self):
        total = cuda.current_context().get_memory_info().total
        for _ in range(8):
            values = cuda.device_array(total // 4, np.uint8)
            values[:10] = 1
            del values
        gc.collect()
        self.assertGreaterEqual(cuda.current_context().get_memory_info().free, total // 4)

    def test_too_much_memory(self):
        total = cuda.current_context().get_memory_info().total
        with self.assertRaisesRegex(Exception, "OUT_OF_MEMORY"):
            cuda.device_array(2 * total, np.uint8)

    def test_mapped_array(self):
        for options in ({}, {"wc": True}, {"portable": True}):
            values = cuda.mapped_array(1000, np.int32, **options)
            values[:] = 1
            bump(values)
            cuda.synchronize()
            np.testing.assert_array_equal(values, 2)

    def test_managed_array(self):
        for count in (1000, 300_000):
            values = cuda.managed_array(count, np.int32)
            for n in range(3):  # the program and the kernels alternate
                values[:] = np.arange(count) + n
                bump(values)
                cuda.synchronize()
                np.testing.assert_array_equal(values, np.arange(count) + n + 1)

    def test_managed_array_in_a_stream(self):
        values, stream = cuda.managed_array(4096, np.float64), cuda.stream()
        values[:] = 0
        for _ in range(5):
            bump(values, 0.5, stream)
        stream.synchronize()
        self.assertEqual(values.sum(), 4096 * 2.5)

    def test_zz_closed(self):
        values, event, stream = cuda.to_device(np.arange(10)), cuda.event(), cuda.stream()
        bump(values, 1, stream)
        del values, event, stream
        cuda.close()  # frees the remaining memory without a current context


if __name__ == "__main__":
    cases.main()
