"""leases.py POOL: connects to a pool with two hosts of one GPU each, uses the lease in this process and in children, and waits for a
line on stdin. A spawned child runs this file again up to `if`, as scripts that connect first do, and must share the lease."""
import multiprocessing
import pathlib
import subprocess
import sys

import gpupool
import driver

pool = sys.argv[1]


def print_refusals():
    for wrong, error in (({"gpus": 3}, gpupool.ServerError), ({"memory": "much"}, gpupool.AddressError)):
        try:
            gpupool.connect(pool, **wrong)
        except error as failure:
            print(f"refused: {failure}", flush=True)
        else:
            sys.exit(f"{wrong} was granted")


def use(lease):
    assert gpupool.status().address == lease, gpupool.status()
    assert driver.count_devices(driver.open_by_name()) == 2


if __name__ == "__main__":
    print_refusals()
gpupool.connect(pool, gpus=2, compute=50, memory=256 << 20, mode="elastic", priority="normal", label=["one", "two"])
if __name__ == "__main__":
    status = gpupool.status()
    assert status.address.startswith("lease:") and len(status.servers) == len(status.devices) == 2, status
    assert all(device.memory_total == 256 << 20 for device in status.devices), status
    gpupool.connect()  # again
    use(status.address)
    child = multiprocessing.get_context("spawn").Process(target=use, args=(status.address,))
    child.start()
    child.join()
    assert child.exitcode == 0
    other = "import driver; assert driver.count_devices(driver.open_by_name()) == 2"
    subprocess.run([sys.executable, "-c", other], cwd=pathlib.Path(__file__).parent, check=True)
    print("connected", flush=True)
    sys.stdin.readline()
