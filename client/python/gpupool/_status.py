"""The state of the GPUs that this process uses or would use, from NVML: pool-smi asks the servers."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from . import _driver, _installation, _lease
from ._errors import ServerError
from ._request import POOL_SCHEME

_MIB = 1 << 20
_NEEDED = ("compute_cap", "memory.total", "memory.used", "memory.free")


@dataclass(frozen=True)
class Device:
    """A GPU as this tenant or lease has it. Sizes are in bytes, rounded down to MiB."""

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    compute_capability: tuple[int, int]
    memory_total: int
    """The memory quota, or the GPU's memory if there is no quota."""
    memory_used: int
    """Memory that sessions of this tenant or lease use."""
    memory_free: int
    utilization: Optional[int]
    """Percent of time in which the GPU worked for this tenant or lease, during the last second."""


@dataclass(frozen=True)
class Status:
    address: str
    """The servers in the form of GPUPOOL; for a lease of a pool, `lease:` and the path of its file."""
    servers: tuple[str, ...]
    """Addresses of the GPU hosts, in the order of the devices."""
    devices: tuple[Device, ...]
    cuda_version: str


def status() -> Status:
    """Asks the servers that `connect()` or the variable GPUPOOL has named. Uses no session and no GPU memory. Raises
    ServerError if one of them does not answer."""
    address = _address()
    if not address:
        raise ServerError("no server is configured; call gpupool.connect() or set GPUPOOL")
    if address.startswith(POOL_SCHEME):
        raise ServerError(f"no GPU of {address} has been leased; call gpupool.connect() first")
    return _query(address)


def _address() -> str:
    driver = _driver.loaded()
    in_use = driver.servers() if driver is not None else ""
    return in_use or os.environ.get("GPUPOOL", "")


def _query(address: str) -> Status:
    done = _installation.run([_installation.program("pool-smi"), "--json"], {**os.environ, "GPUPOOL": address})
    if done.returncode != 0:
        raise ServerError(_installation.reason(done.stderr, f"pool-smi ended with status {done.returncode}"))
    rows: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    for row in rows:
        if unknown := [name for name, value in row.items() if value is None and name in _NEEDED]:
            raise ServerError(f"GPU {row['index']} reports no {', '.join(unknown)}; gpupool smi shows its state")
    return Status(address=address, servers=_lease.server_addresses(address), devices=tuple(map(_device, rows)),
                  cuda_version=str(rows[0]["cuda_version"]))


def _device(row: dict[str, Any]) -> Device:
    major, _, minor = str(row["compute_cap"]).partition(".")
    total, used, free = (int(row[f"memory.{name}"]) * _MIB for name in ("total", "used", "free"))
    utilization = row["utilization.gpu"]
    return Device(index=int(row["index"]), name=str(row["name"]), uuid=str(row["uuid"]), pci_bus_id=str(row["pci.bus_id"]),
                  compute_capability=(int(major), int(minor)), memory_total=total, memory_used=used, memory_free=free,
                  utilization=None if utilization is None else int(utilization))
