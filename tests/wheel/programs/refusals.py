"""refusals.py CASE SERVER [LIBRARY]: makes connect() fail in one way, and prints its error, `CLASS: TEXT`."""
import ctypes
import os
import sys

import gpupool
import driver


def fails(*words, **more):
    before = dict(os.environ)
    try:
        gpupool.connect(*words, **more)
    except gpupool.Error as failure:
        assert dict(os.environ) == before, "the environment was changed"
        print(f"{type(failure).__name__}: {failure}", flush=True)
    else:
        sys.exit("connect() has not failed")


def main(case, server, library=None):
    if case == "other_driver":
        ctypes.CDLL(library)
        fails(server)
    elif case == "other_server_in_use":
        gpupool.connect(server, check=False)
        assert driver.count_devices(driver.open_by_name()) == 1
        fails("tcp://127.0.0.1:1")
    elif case == "failed_before":
        folder = os.path.join(os.path.dirname(gpupool.__file__), "lib", "client")
        assert ctypes.CDLL(os.path.join(folder, "libcuda.so.1")).cuInit(0) != 0  # no server is set
        fails(server)
    elif case == "forked":
        gpupool.connect(server)
        assert driver.count_devices(driver.open_by_name()) == 1
        child = os.fork()
        if child == 0:
            fails(server)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    elif case == "unreachable":
        fails("tcp://127.0.0.1:1")
        assert driver.loaded_libraries("libcuda.so") == []
        gpupool.connect(server)  # the failed call has left nothing behind
        assert driver.count_devices(driver.open_by_name()) == 1
    elif case == "unchecked":
        gpupool.connect("tcp://127.0.0.1:1", check=False)
        print(f"{os.environ['GPUPOOL']} was not asked")
    elif case == "request_without_pool":
        fails(server, gpus=2, memory="1GiB", one_host=True)
    elif case == "no_server":
        fails()
    elif case == "wrong_address":
        fails("tcp//127.0.0.1")
    elif case == "token_file":
        fails(server, token_file="/proc/self/no-such-file")


main(*sys.argv[1:])
