"""Loads gpupool's libcuda.so.1 and libnvidia-ml.so.1 into this process.

The dynamic linker compares the name in dlopen("libcuda.so.1") with the sonames of the loaded libraries before it searches
any folder. So a library that is loaded early, by its path, is the one that CUDA's runtime and NVML's users find later."""
from __future__ import annotations

import ctypes
import enum
import os
from typing import Optional

from . import _installation
from ._errors import LoadError

_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"


class State(enum.IntEnum):
    """What gpupool_client_state() returns (client/process/process.cc)."""

    UNUSED = 0
    CONNECTED = 1
    FAILED = 2
    FORKED = 3


class Driver:
    """gpupool's libcuda.so.1 in this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def state(self) -> State:
        return State(self._library.gpupool_client_state())

    def servers(self) -> str:
        """Returns the servers in use, in the form of GPUPOOL; empty: none."""
        count = self._library.gpupool_client_servers
        count.restype = ctypes.c_size_t
        count.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        text = ctypes.create_string_buffer(count(None, 0) + 1)
        count(text, len(text))
        return os.fsdecode(text.value)


def loaded() -> Optional[Driver]:
    """Returns the driver if this process has loaded it."""
    try:
        path = _installation.library(_CUDA)
        return Driver(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    except (LoadError, OSError):
        return None


def load() -> None:
    """Loads both libraries, once. Raises LoadError if another driver is loaded, which programs would find instead."""
    refuse_others()
    paths = _paths()
    try:
        cuda, nvml = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths)
        for name, ours in ((_CUDA, cuda), (_NVML, nvml)):
            if ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)._handle != ours._handle:
                raise LoadError(f"another {name} is loaded, which programs find in place of gpupool's; call gpupool.connect() "
                                "first, before other packages use CUDA")
    except OSError as failure:
        raise LoadError(f"cannot load gpupool's client library: {failure}") from failure


def refuse_others() -> None:
    """Raises LoadError if load() would: this process has loaded another driver, or the package has none."""
    known = {os.path.realpath(path) for path in _paths()}
    for path in _mapped_files():
        name = os.path.basename(path)
        if name.startswith(("libcuda.so", "libnvidia-ml.so")) and path not in known:
            raise LoadError(f"this process has loaded another driver, {path}; call gpupool.connect() first, before other "
                            "packages use CUDA")


def _paths() -> list[str]:
    return [_installation.library(name) for name in (_CUDA, _NVML)]


def _mapped_files() -> list[str]:
    """Returns the paths of this process's mapped files, with ' (deleted)' behind those that exist no more."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(maxsplit=5) for line in file]
    except OSError:
        return []  # load() compares handles, too
    return list(dict.fromkeys(row[5] for row in rows if len(row) == 6 and row[5].startswith("/")))
