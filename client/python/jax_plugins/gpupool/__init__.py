"""Lets JAX use its CUDA backend on a machine that has no GPU of its own.

JAX silently ignores the CUDA backend if neither /dev/nvidia0 nor another NVIDIA device file exists, as on a machine
whose GPUs are gpupool's. pool-run puts the folder above jax_plugins in PYTHONPATH; JAX imports every
module in the namespace package jax_plugins and calls initialize() before it looks for these files. The CUDA backend
itself then asks the driver, which is gpupool's, and fails with its own message where there is no GPU.
"""
import os


def initialize():
    if "GPUPOOL" not in os.environ:
        return
    try:
        from jax._src.hardware_utils import _NVIDIA_GPU_DEVICES as device_files
        device_files.append(os.devnull)
    except (ImportError, AttributeError) as changed:
        import warnings
        warnings.warn(f"gpupool cannot enable the CUDA backend of this JAX version ({changed}); JAX may use the CPU; "
                      "see gpupool's docs/python.md")
