"""The environment variables of programs that use gpupool. pool-run knows them (client/run/environment.h); this module
asks it, so that a process has the same ones however it was started."""
from __future__ import annotations

import os
from collections.abc import Mapping

from . import _installation
from ._errors import AddressError, LoadError

_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH")
_EXIT_USAGE = 2  # of pool-run


def _folders(path: str) -> list[str]:
    return path.split(":") if path else []


def variables(address: str, present: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that pool-run sets for a server's or a lease's programs, if they differ from `present`.
    Raises AddressError if pool-run rejects the address, LoadError if it fails otherwise."""
    words = [_installation.program("pool-run"), "--server", address, "--", "/usr/bin/env", "-0"]
    done = _installation.run(words, present)
    if done.returncode != 0:
        error = AddressError if done.returncode == _EXIT_USAGE else LoadError
        raise error(_installation.reason(done.stderr, f"pool-run ended with status {done.returncode}"))
    pairs = (os.fsdecode(entry).partition("=") for entry in done.stdout.split(b"\0") if entry)
    changed = {name: value for name, _, value in pairs if present.get(name) != value}
    for name in _PATHS:  # pool-run adds its folder, even if it is there already
        if name in changed and _folders(changed[name])[0] in _folders(present.get(name, "")):
            del changed[name]
    return changed


def are_set(address: str, present: Mapping[str, str]) -> bool:
    """True if these are the variables of a program that was started with this address."""
    return present.get("GPUPOOL") == address and _installation.CLIENT_FOLDER in _folders(present.get("LD_LIBRARY_PATH", ""))


def variables_without_lease(pool: str, present: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a program that acquires its lease itself when it first uses CUDA. Until then the servers
    are unknown, so that NCCL gets only the setting that holds for all of them."""
    changed = {"GPUPOOL": pool, "NCCL_SHM_DISABLE": present.get("NCCL_SHM_DISABLE", "1")}
    path = present.get("LD_LIBRARY_PATH", "")
    if _installation.CLIENT_FOLDER not in _folders(path):
        changed["LD_LIBRARY_PATH"] = f"{_installation.CLIENT_FOLDER}:{path}" if path else _installation.CLIENT_FOLDER
    return changed
