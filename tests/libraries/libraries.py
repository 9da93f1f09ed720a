"""NVIDIA's libraries start up and make their calls: `libraries.py NAME`, with the driver that LD_LIBRARY_PATH leads to.

What each call returns is checked, and what it computes where the device executes the library's kernels: a GPU does, and
softgpu where it takes their PTX (SOFTGPU_COMPUTE_CAPABILITY=13.0); with SOFTGPU_SKIP_MACHINE_CODE=1 they do nothing.
Status 77: the library is not installed.
"""
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402


def main():
    try:
        device = support.Device()
        importlib.import_module(sys.argv[1]).tour(device)
    except support.Missing as missing:
        print(f"skipped: {missing}")
        return 77
    device.runtime.cudaDeviceSynchronize()
    device.release()
    print(f"{sys.argv[1]} works" + ("" if device.computes else "; its kernels were skipped"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
