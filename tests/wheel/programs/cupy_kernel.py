"""cupy_kernel.py SERVER: arrays and a kernel of CuPy after connect(), without pool-run."""
import sys

import gpupool

gpupool.connect(sys.argv[1])

import cupy as cp  # noqa: E402  (the order is what is tested)
import numpy as np  # noqa: E402

scale = cp.RawKernel(r"""
extern "C" __global__ void scale(float* values, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= factor;
}""", "scale")
values = np.arange(1000, dtype=np.float32)
there = cp.asarray(values)
scale((8,), (128,), (there, np.float32(3), 1000))
np.testing.assert_array_equal(cp.asnumpy(there), values * 3)
assert cp.cuda.runtime.getDeviceCount() == len(gpupool.status().devices)
