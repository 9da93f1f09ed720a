#!/usr/bin/env python3
"""Usage: scripts/checks/names.py
Checks the names of all tracked files and their folders:
- only the characters A-Z a-z 0-9 . _ - and no leading dash, so that shells, make and every file system take them
- C, C++ and CUDA sources, tables and schemas are snake_case and end in .cc, .h, .cu, .c, .S, .def or .proto
- no two names differ only in case, because some file systems hold only one of them
"""
import re
import sys

from tree import finish, tracked_files

PORTABLE = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
SNAKE_CASE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*\.(cc|h|cu|c|S|def|proto)")
SOURCE = re.compile(r".*\.(cc|h|cu|c|s|def|proto|cpp|cxx|c\+\+|hh|hpp|hxx|h\+\+|cuh|inc|inl|ipp|tpp)", re.IGNORECASE | re.DOTALL)


def check_names(names):
    findings, spellings = [], {}
    for name in names:
        parts = name.split("/")
        if not all(PORTABLE.fullmatch(part) for part in parts):
            findings.append(f"{name!a}: has characters other than A-Z a-z 0-9 . _ -, or a part that begins with a dash; rename it")
        elif SOURCE.fullmatch(parts[-1]) and not SNAKE_CASE.fullmatch(parts[-1]):
            findings.append(f"{name}: a source's name must be snake_case and end in .cc, .h, .cu, .c, .S, .def or .proto; rename it")
        for length in range(1, len(parts) + 1):  # folders too
            path = "/".join(parts[:length])
            other = spellings.setdefault(path.lower(), path)
            if other != path:
                findings.append(f"{path!a}: differs from {other!a} only in case; rename one of them")
    return list(dict.fromkeys(findings))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    names = tracked_files()
    finish("names", check_names(names), f"{len(names)} names are portable")
