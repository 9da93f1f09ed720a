"""connect(): gives this process the GPUs of a server or a pool."""
from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Literal, Optional, Union

from . import _driver, _environment, _lease
from ._errors import AddressError, LoadError
from ._request import POOL_SCHEME, Value, address_with, has_query, query_of
from ._status import status

_lock = threading.Lock()
_connected: Optional[str] = None  # the address that connect() was asked for


def connect(
    server: Optional[str] = None,
    *,
    token_file: Union[str, "os.PathLike[str]", None] = None,
    gpus: Optional[int] = None,
    memory: Union[int, str, None] = None,
    compute: Optional[float] = None,
    model: Union[str, Iterable[str], None] = None,
    one_host: bool = False,
    cpus: Optional[float] = None,
    host_memory: Union[int, str, None] = None,
    mode: Optional[Literal["elastic", "hard"]] = None,
    priority: Optional[Literal["low", "normal", "high"]] = None,
    near: Union[str, Iterable[str], None] = None,
    apart: Union[str, Iterable[str], None] = None,
    label: Union[str, Iterable[str], None] = None,
    check: bool = True,
) -> None:
    """Gives this process and its children the GPUs of a server. Call it before other packages use CUDA, best before they are
    imported.

    `server` is an address as in GPUPOOL (the default): tcp://HOST:PORT, tls://HOST:PORT, ..., several with commas, or
    pool://SCHEDULER:PORT. With a pool it waits in the queue until the lease is granted; the lease ends with this process.
    `gpus` to `label` request resources from a pool, as the options of pool-run; `memory` and `host_memory` are numbers of
    bytes or texts like "8GiB". `check=False` does not ask the servers whether they answer.

    A second call with the same arguments, here or in a child process, does nothing but the check, as does one without arguments.
    Raises AddressError, LoadError or ServerError; the process is then as before. Sets environment variables, so no other thread
    should run yet."""
    request: dict[str, Value] = {
        "gpus": gpus, "memory": memory, "compute": compute, "model": model, "one_host": one_host, "cpus": cpus,
        "host_memory": host_memory, "mode": mode, "priority": priority, "near": near, "apart": apart, "label": label,
    }
    address = _address(server, query_of(request))
    if not address:
        raise AddressError("no server is given; use gpupool.connect('tcp://HOST:PORT') or 'pool://SCHEDULER:PORT', or set GPUPOOL")
    if token_file is not None and not os.access(token_file, os.R_OK):
        raise AddressError(f"token_file: '{os.fspath(token_file)}' cannot be read")
    with _lock:
        _driver.refuse_others()
        if not _is_in_use(address):
            _enter(address, token_file, check)
        elif check:
            status()


def _address(server: Optional[str], query: str) -> str:
    earlier = _connected or _lease.source(os.environ)
    if not server and earlier and has_query(earlier, query):
        return earlier
    return address_with(server or os.environ.get("GPUPOOL", ""), query)


def _is_in_use(address: str) -> bool:
    """True if this process already uses the address. Raises LoadError if it uses another one, or cannot use any."""
    if _connected is not None and _connected != address:
        raise LoadError(f"this process is already connected to {_connected}; start another process to use {address}")
    driver = _driver.loaded()
    if driver is None:
        return False
    state = driver.state()
    if state is _driver.State.FORKED:
        raise LoadError("this process was forked by one that has used CUDA, and cannot use it; use the start method 'spawn' of "
                        "multiprocessing")
    if state is _driver.State.FAILED:
        raise LoadError("CUDA has already failed to start in this process; call gpupool.connect() first, before other packages "
                        "use CUDA")
    if state is _driver.State.CONNECTED and _connected is None and not _is_served(driver, address):
        raise LoadError(f"CUDA in this process already uses {driver.servers()}; call gpupool.connect() first, before other "
                        "packages use CUDA")
    return _connected is not None or state is _driver.State.CONNECTED


def _is_served(driver: _driver.Driver, address: str) -> bool:
    """True if CUDA has connected to the address, or has acquired its own lease from it."""
    acquired = driver.servers().startswith(_lease.SCHEME) and address.startswith(POOL_SCHEME)
    return address == driver.servers() or (acquired and address == os.environ.get("GPUPOOL"))


def _enter(address: str, token_file: Union[str, "os.PathLike[str]", None], check: bool) -> None:
    global _connected
    before = dict(os.environ)
    lease = None
    in_use = address
    try:
        if token_file is not None:
            os.environ["GPUPOOL_TOKEN_FILE"] = os.path.abspath(token_file)
        if address == _lease.source(os.environ):
            in_use = os.environ["GPUPOOL"]
        elif address.startswith(POOL_SCHEME):
            lease = _lease.acquire(address, os.environ)
            in_use = lease.address
            os.environ[_lease.SOURCE_VARIABLE] = f"{in_use} {address}"
        os.environ.update(_environment.variables(in_use, os.environ))
        if check:
            status()
        _driver.load()
    except BaseException:
        if lease is not None:
            lease.release()
        _restore(before)
        raise
    _connected = address


def _restore(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
