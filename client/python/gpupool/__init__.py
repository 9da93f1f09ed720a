"""GPUs of other machines for this process.

    import gpupool
    gpupool.connect("pool://scheduler:9800", gpus=2)
    import torch

See docs/python-package.md of gpupool."""
from ._connect import connect
from ._errors import AddressError, Error, LoadError, ServerError
from ._status import Device, Status, status

__all__ = ["AddressError", "Device", "Error", "LoadError", "ServerError", "Status", "__version__", "connect", "status"]
__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'gpupool' has no attribute '{name}'")
    from importlib.metadata import version  # takes longer than all other imports of this package

    return version("gpupool")
