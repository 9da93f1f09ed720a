"""The programs and libraries of gpupool inside this package: bin/NAME and lib/client/NAME, as in every installation."""
from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from ._errors import LoadError

FOLDER = os.path.dirname(os.path.realpath(__file__))
CLIENT_FOLDER = os.path.join(FOLDER, "lib", "client")


def program(name: str) -> str:
    """Returns the path of a program. Raises LoadError if this is a source tree instead of an installed wheel."""
    path = os.path.join(FOLDER, "bin", name)
    if not os.access(path, os.X_OK):
        raise LoadError(f"{path} is missing or not executable; install the wheel that scripts/make-wheel.sh makes")
    return path


def library(name: str) -> str:
    path = os.path.join(CLIENT_FOLDER, name)
    if not os.path.isfile(path):
        raise LoadError(f"{path} is missing; install the wheel that scripts/make-wheel.sh makes")
    return path


def run(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Runs a program of gpupool without input and returns its output. Raises LoadError if it cannot be started."""
    try:
        return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as failure:
        raise LoadError(f"cannot start {words[0]}: {failure.strerror}") from failure


def reason(errors: bytes, otherwise: str) -> str:
    """Returns the last line that a program wrote to stderr, without the names in front of it."""
    lines = [line.strip() for line in os.fsdecode(errors).splitlines() if line.strip()]
    text = lines[-1] if lines else otherwise
    for name in ("pool-run: ", "pool-smi: ", "gpupool: ", "NVML: "):
        text = text.removeprefix(name)
    return text
