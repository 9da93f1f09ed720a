#!/usr/bin/env python3
"""Usage: scripts/checks/sizes.py [--write] [FILE...]
Fails if a source has more than 400 lines, or a function of C++ or Python more than 60 lines between its braces. Exceptions are
the rows of sizes.txt, each with a size that it must not exceed; a row that is no longer needed fails. Tables (*.def) are exempt.
FILE...   checks only these files
--write   writes sizes.txt as the tree is, and prints the rows that are new or larger: after files were moved or became smaller
"""
import re
import sys

from functions import cpp_functions, python_functions
from tree import ROOT, finish, read, tracked_files

MAX_FILE = 400
MAX_FUNCTION = 60
LIST = "scripts/checks/sizes.txt"
HEADER = f"""# Files of more than {MAX_FILE} lines and functions of more than {MAX_FUNCTION}, which scripts/checks/sizes.py (test lint.sizes) accepts up to
# the size of their rows. Rows may get smaller or go away; new code gets none.
"""
CPP = re.compile(r".*\.(cc|h|cu|c)")
SOURCE = re.compile(r"(.*/)?(.*\.(cc|h|cu|c|S|proto|py|sh|cmake)|CMakeLists\.txt)")


def too_large(name, text):
    """Returns the parts of a file that exceed their limit: row -> lines. The row is the file's name, with the function's after it."""
    sizes = {}
    if text.count("\n") > MAX_FILE:
        sizes[name] = text.count("\n")
    functions = cpp_functions(text) if CPP.fullmatch(name) else python_functions(text) if name.endswith(".py") else []
    for function, _, lines in functions:
        row = f"{name}: {function}"
        if lines > MAX_FUNCTION:
            sizes[row] = max(lines, sizes.get(row, 0))  # overloads share a row
    return sizes


def read_list(text):
    rows = (line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {row: int(lines) for lines, row in rows}


def compare(sizes, listed):
    """Yields the differences between the parts that are too large and the rows of the list."""
    for row, lines in sizes.items():
        limit, what = (MAX_FUNCTION, "function") if ": " in row else (MAX_FILE, "file")
        if row not in listed:
            yield f"{row}: has {lines} lines, more than the {limit} of a {what}; split it by meaning"
        elif lines > listed[row]:
            yield f"{row}: grew from {listed[row]} to {lines} lines; split it by meaning, because sizes in {LIST} must not be raised"
    for row in listed:
        if row not in sizes:
            yield f"{LIST}: the row {row} is no longer needed; remove it"


def main():
    words = sys.argv[1:]
    if any(word.startswith("-") and word != "--write" for word in words):
        sys.exit(__doc__)
    names = [name for name in tracked_files() if SOURCE.fullmatch(name)]
    if chosen := set(words) - {"--write"}:
        names = [name for name in names if name in chosen]
    sizes = {row: lines for name in names for row, lines in too_large(name, read(name)).items()}
    listed = read_list(read(LIST)) if (ROOT / LIST).exists() else {}
    if chosen:
        listed = {row: lines for row, lines in listed.items() if row.split(": ")[0] in chosen}
    elif words:
        (ROOT / LIST).write_text(HEADER + "".join(f"{lines} {row}\n" for row, lines in sorted(sizes.items())))
        print("".join(f"new: {lines} {row}\n" for row, lines in sizes.items() if lines > listed.get(row, 0)), end="")
        return
    finish("sizes", list(compare(sizes, listed)), f"{len(names)} files and their functions are within the limits, or {len(listed)} exceptions")


if __name__ == "__main__":
    main()
