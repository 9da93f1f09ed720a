"""numba_kernel.py SERVER: a kernel of Numba after connect(), without pool-run."""
import sys

import gpupool

gpupool.connect(sys.argv[1])

import numpy as np  # noqa: E402  (the order is what is tested)
from numba import cuda  # noqa: E402


@cuda.jit
def scale(values, factor):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


values = np.arange(1000, dtype=np.float32)
there = cuda.to_device(values)
scale[8, 128](there, np.float32(3))
np.testing.assert_array_equal(there.copy_to_host(), values * 3)
assert "softgpu" in cuda.get_current_device().name.decode()
