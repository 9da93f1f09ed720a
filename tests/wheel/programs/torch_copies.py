"""torch_copies.py SERVER: the calls of PyTorch that need no kernel, after connect(), here and in a spawned process. softgpu
skips the kernels of PyTorch's wheels (docs/python.md)."""
import sys

import gpupool


def use():
    import torch

    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == len(gpupool.status().devices)
    values = torch.arange(1, 1001, dtype=torch.float32)
    assert torch.equal(values.pin_memory().to("cuda", non_blocking=True).cpu(), values)
    assert "softgpu" in torch.cuda.get_device_name(0)


if __name__ == "__main__":
    gpupool.connect(sys.argv[1])
    import torch.multiprocessing

    use()
    child = torch.multiprocessing.get_context("spawn").Process(target=use)
    child.start()
    child.join()
    assert child.exitcode == 0
