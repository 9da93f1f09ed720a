"""Tests one of NVIDIA's libraries with the driver in LD_LIBRARY_PATH: `libraries.py NAME`.

Checks the status of each call, and the results if the device executes the library's kernels. A GPU does, and so does softgpu if
the library has PTX for it (SOFTGPU_COMPUTE_CAPABILITY=13.0); with SOFTGPU_SKIP_MACHINE_CODE=1 the kernels do nothing.
Exit status 77: the library is not installed.
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
