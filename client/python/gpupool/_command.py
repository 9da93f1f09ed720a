"""The command `gpupool`: starts the programs of this package."""
from __future__ import annotations

import os
import signal
import sys

from . import _installation
from ._errors import LoadError

_HELP = """\
Usage: gpupool run [OPTIONS] PROGRAM [ARGUMENTS...]    runs a program on GPUs of a server or a pool, as pool-run
       gpupool smi [OPTIONS]                           shows the GPUs, as pool-smi
       gpupool --version | --help

  gpupool run --server tcp://HOST:PORT python train.py
  gpupool run --server pool://SCHEDULER:PORT --gpus 2 --memory 8GiB -- python train.py
  gpupool smi --server tcp://HOST:PORT

`gpupool run --help` and `gpupool smi --help` list the options.
"""
_PROGRAMS = {"run": "pool-run", "smi": "pool-smi"}
_EXIT_USAGE = 2
_EXIT_BROKEN = 125  # as pool-run: the program was not run


def _replace_by(name: str, arguments: list[str]) -> int:
    """Replaces this process by a program of the package. Returns an exit status if that fails."""
    # Python ignores these signals, and an ignored signal stays so in the new program.
    for ignored in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, ignored), signal.SIG_DFL)
    try:
        path = _installation.program(name)
        os.execv(path, [name, *arguments])
    except (LoadError, OSError) as failure:
        print(f"gpupool: cannot run {name}: {failure}", file=sys.stderr)
        return _EXIT_BROKEN


def main() -> int:
    words = sys.argv[1:]
    if words and words[0] in _PROGRAMS:
        return _replace_by(_PROGRAMS[words[0]], words[1:])
    if words in (["--help"], ["-h"]):
        print(_HELP, end="")
        return 0
    if words == ["--version"]:
        from . import __version__

        print(f"gpupool {__version__}")
        return 0
    if words:
        print(f"gpupool: unknown command '{words[0]}'; see gpupool --help", file=sys.stderr)
    else:
        print(_HELP, end="", file=sys.stderr)
    return _EXIT_USAGE
