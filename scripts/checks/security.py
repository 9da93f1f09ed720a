#!/usr/bin/env python3
"""Usage: scripts/checks/security.py
Checks docs/security.md:
- the section "Defences" has a table for each attacker of its list in ATTACKERS, and the section "Known limits" exists
- each row of its tables, and of "Vulnerabilities found in reviews", names at least one file below tests/ in its last column;
  a vulnerability without a mend says instead: open: see "Known limits"
- these files are tracked tests: NAME_test.cc, NAME_test.py, fuzz_NAME.cc
CMake (cmake/tests.cmake) checks that each of them belongs to a test with the label `security`.
"""
import re
import sys

from tree import finish, read, tracked_files

PAGE = "docs/security.md"
ATTACKERS = ("tenant", "worker", "unauthenticated peer", "user of the GPU host", "client's machine", "network", "host or scheduler", "web page")
TEST = re.compile(r"(\w+_test\.(cc|py)|fuzz_\w+\.cc)")


def sections(text, marks):
    """Splits a text at headings of this level; returns pairs of a heading and what follows it."""
    parts = re.split(rf"^{marks} (.*)$", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2]))


def rows(text):
    """Returns the cells of the rows of tables without their heads."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return [cells for at, cells in enumerate(found) if not is_rule(cells) and not (at + 1 < len(found) and is_rule(found[at + 1]))]


def is_rule(cells):
    return all(re.fullmatch(r"[-|: ]+", cell) for cell in cells)


def row_faults(cells, files, may_be_open):
    row = f"row '{cells[0][:60]}'"
    if may_be_open and cells[-1].startswith('open: see "Known limits"'):
        return
    tests = re.findall(r"`([^`]+)`", cells[-1])
    if len(cells) < 2 or not tests:
        yield f"{row} names no test"
    for test in tests:
        if not test.startswith("tests/") or not TEST.fullmatch(test.rsplit("/", 1)[-1]):
            yield f"{row} names {test}, which is no test"
        elif test not in files:
            yield f"{row} names {test}, which is no tracked file"


def page_faults(text, files):
    chapters = dict(sections(text, "##"))
    for name in ("Defences", "Vulnerabilities found in reviews", "Known limits"):
        if not chapters.get(name, "").strip():
            yield f"has no section '{name}'"
    attackers = sections(chapters.get("Defences", ""), "###")
    for attacker in ATTACKERS:
        if not any(attacker in heading and rows(body) for heading, body in attackers):
            yield f"has no table of defences against: {attacker}"
    for name in ("Defences", "Vulnerabilities found in reviews"):
        for cells in rows(chapters.get(name, "")):
            yield from row_faults(cells, files, name != "Defences")


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    files = set(tracked_files())
    if PAGE not in files:  # CMake requires it
        finish("security", [], f"there is no {PAGE}")
    findings = [f"{PAGE}: {fault}" for fault in page_faults(read(PAGE), files)]
    finish("security", findings, "each defence and each mended vulnerability names its tests")


if __name__ == "__main__":
    main()
