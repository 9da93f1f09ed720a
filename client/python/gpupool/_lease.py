"""Leases of a pool: pool-lease, the program that acquires one and holds it while this process lives."""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from . import _installation
from ._errors import AddressError, LoadError, ServerError

SCHEME = "lease:"
# Set by connect() for child processes, which share the lease if they call connect() with the same arguments: the value of
# GPUPOOL, a space, and the pool:// address that was asked. A process of multiprocessing's `spawn` runs the main module again.
SOURCE_VARIABLE = "GPUPOOL_LEASED_FROM"
_LONGEST_ANSWER = 64 * 1024


class Lease:
    """A lease that this process holds. `address` is the value of GPUPOOL for programs that use it."""

    def __init__(self, address: str, command: list[str]) -> None:
        self.address = address
        self._command = command

    def release(self) -> None:
        _terminate(self._command)


def source(environment: Mapping[str, str]) -> str:
    """Returns the pool:// address from which connect(), here or in a parent process, got the lease that GPUPOOL names; empty:
    there is no such lease, or it has ended."""
    address = environment.get("GPUPOOL", "")
    known = environment.get(SOURCE_VARIABLE, "")
    if not address.startswith(SCHEME) or not known.startswith(f"{address} ") or not os.path.exists(address[len(SCHEME):]):
        return ""
    return known[len(address) + 1:]


def acquire(pool: str, environment: Mapping[str, str]) -> Lease:
    """Waits in the pool's queue until the lease is granted; pool-lease reports the place in the queue on stderr. Raises
    AddressError or ServerError with the reason if there will be none. An interrupt withdraws the request."""
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    if not name or name.startswith("-"):
        name = "python"
    command = [_installation.program("pool-lease"), pool, name, str(os.getpid())]
    answer = _ask(command, environment)
    kind, _, rest = answer.partition(" ")
    if kind == "granted":
        return Lease(SCHEME + rest, command)
    if kind == "invalid":
        raise AddressError(rest)
    raise ServerError(rest if kind == "refused" else "pool-lease ended without an answer")


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        # A new session, so that it does not get the terminal's signals.
        helper = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  start_new_session=True)
    except OSError as failure:
        raise LoadError(f"cannot start {command[0]}: {failure.strerror}") from failure
    assert helper.stdout is not None
    with helper.stdout:
        try:
            helper.wait()  # it forks and exits at once, so that it is not our child
            return os.fsdecode(helper.stdout.readline(_LONGEST_ANSWER)).strip()
        except BaseException:
            helper.wait()  # until then it may still fork
            _terminate(command)
            raise


def _terminate(command: list[str]) -> None:
    """Ends the pool-lease with these arguments, one of which is our process id; it returns the lease."""
    wanted = b"".join(os.fsencode(word) + b"\0" for word in command)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                _terminate_if(int(entry), wanted)


def _terminate_if(process: int, command_line: bytes) -> None:
    handle = os.pidfd_open(process)  # the id may be reused
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            if file.read() == command_line:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
    finally:
        os.close(handle)


def server_addresses(address: str) -> tuple[str, ...]:
    """Returns the GPU hosts that GPUPOOL names: addresses, or those of a lease file (client/lease/file.h)."""
    if not address.startswith(SCHEME):
        return tuple(part.strip() for part in address.split(",") if part.strip())
    try:
        with open(address[len(SCHEME):], encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()[1:]
    except OSError as failure:
        raise ServerError(f"cannot read the lease file {failure.filename}: {failure.strerror}; the lease may be over") from failure
    return tuple(line.split(maxsplit=1)[0] for line in lines if line.strip() and not line.startswith("> "))
