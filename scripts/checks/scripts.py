#!/usr/bin/env python3
"""Usage: scripts/checks/scripts.py shell|python [FILE...]
Runs shellcheck on all shell scripts, or pyflakes on all Python files: those with a suffix .sh or .py and those that begin with
`#!` and the name of an interpreter. FILE...: checks only these. Exit status 77: the tool is not installed.
"""
import os
import re
import shutil
import subprocess
import sys

from tree import ROOT, tracked_files

# language: (suffix, interpreter, names of the tool with options, package)
LANGUAGES = {
    "shell": (".sh", r"#!\s*\S*(/|env )(ba|da|)sh\b", (("shellcheck", "-x"),), "shellcheck"),
    "python": (".py", r"#!\s*\S*(/|env )python", (("pyflakes3",), ("pyflakes",)), "pyflakes3"),
}


def is_script(name, suffix, interpreter):
    if os.path.splitext(name)[1]:
        return name.endswith(suffix)
    path = ROOT / name
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return bool(re.match(interpreter, file.readline(200).decode(errors="replace")))


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in LANGUAGES:
        sys.exit(__doc__)
    suffix, interpreter, tools, package = LANGUAGES[sys.argv[1]]
    tool = next((tool for tool in tools if shutil.which(tool[0])), None)
    if not tool:
        print(f"skipped: {tools[0][0]} is not installed (package {package})")
        sys.exit(77)
    chosen = set(sys.argv[2:])
    names = [name for name in tracked_files() if (not chosen or name in chosen) and is_script(name, suffix, interpreter)]
    failed = bool(names) and subprocess.run([*tool, *names], cwd=ROOT, check=False).returncode
    print(f"{tool[0]}: {len(names)} files{'' if failed else ', no findings'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
