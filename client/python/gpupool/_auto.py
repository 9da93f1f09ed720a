"""Start-up by the environment alone: gpupool-auto.pth calls start() in each Python process of this environment if
GPUPOOL_AUTO is set and not 0, unless Python ignores the environment (-E, -I).

It loads the client library, but connects only when the program first uses CUDA: Python processes that use no GPU, such as
pip, neither wait for a server nor get a lease."""
from __future__ import annotations

import os
import sys

from . import _driver, _environment
from ._errors import AddressError
from ._request import POOL_SCHEME

_started = False


def _prepare() -> None:
    address = os.environ.get("GPUPOOL", "")
    if not address:
        raise AddressError("GPUPOOL is not set; set it to the server's address")
    changed: dict[str, str] = {}
    if address.startswith(POOL_SCHEME):
        changed = _environment.variables_without_lease(address, os.environ)
    elif not _environment.are_set(address, os.environ):
        changed = _environment.variables(address, os.environ)
    _driver.load()
    os.environ.update(changed)


def start() -> None:
    """Never fails, because Python itself is just starting: an error is one line on stderr, and Python goes on. Only the first
    call has an effect; Python reads the files of a virtual environment twice."""
    global _started
    if _started:
        return
    _started = True
    try:
        _prepare()
    except Exception as failure:
        if sys.stderr is not None:
            print(f"gpupool: GPUPOOL_AUTO has no effect: {failure}", file=sys.stderr)
