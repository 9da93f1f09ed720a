#!/usr/bin/env python3
"""Usage: scripts/checks/handover.py [--write]
Fails if the messages between poold and its workers, or the memory that both map, are not those of the version that
kControlVersion names (server/handover/versions/N.txt). After an upgrade a new poold has workers of older versions, which
would misunderstand it. A change needs a new version, as server/handover/handover.h says; --write then records it. Unreleased
versions may be overwritten.
"""
import re
import sys

from tree import ROOT, finish, read

SOURCES = ("server/handover/control.def", "server/handover/control_messages.h", "server/handover/handover.h", "server/quota/session_page.h",
           "server/quota/account.h", "server/quota/shared_allocations.h", "server/quota/turn_word.h", "protocol/wire/checkpoint.h",
           "protocol/wire/images.h", "protocol/wire/peers.h", "protocol/control/quota.def")
ROWS = re.compile(r"^(CONTROL|QUOTA_IN_WORKERS)\(([^()]*)\)", re.MULTILINE)
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"\)\s*(const|noexcept)?\s*$")
VERSION = re.compile(r"constexpr uint32_t kControlVersion = (\d+);")


def row_of(match):
    """A row without its texts: of a quota only the type and the name of the member matter."""
    words = [word.strip() for word in match[2].split(",")]
    return f"{match[1]}({', '.join(words[:2] if match[1] == 'QUOTA_IN_WORKERS' else words)})"


def without_functions(text):
    """Replaces the bodies of functions by semicolons."""
    kept, depth, at = [], 0, 0
    while at < len(text):
        if depth == 0 and text[at] == "{" and FUNCTION.search("".join(kept[-80:])):
            depth = 1
            kept.append(";")
        elif depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
        else:
            kept.append(text[at])
        at += 1
    return "".join(kept)


def layout(name):
    """The declarations of a file that say what lies where: rows, constants, enumerations, structs and their members."""
    text = COMMENTS.sub("", read(name))
    if name.endswith(".def"):
        return [row_of(row) for row in ROWS.finditer(text)]
    text = re.sub(r"^[ \t]*#.*?(?<!\\)$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = []
    for statement in re.split(r"(?<=[;{}])", without_functions(text)):
        words = " ".join(statement.split())
        is_code = "(" in words or words.startswith(("return ", "using ", "namespace ", "template ", "friend ", "if ", "else "))
        if words and words not in ("{", "}", "};", ";") and not is_code and not words.startswith("constexpr uint32_t kControlVersion"):
            lines.append(words)
    return lines


def text_of_layouts():
    return "".join(f"# {name}\n" + "".join(f"{line}\n" for line in layout(name)) for name in SOURCES)


def main():
    number = VERSION.search(read("server/handover/handover.h"))
    if not number:
        finish("handover", ["server/handover/handover.h: kControlVersion was not found"], "")
    path = f"server/handover/versions/{number[1]}.txt"
    now = text_of_layouts()
    if sys.argv[1:] == ["--write"]:
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(now, encoding="utf-8")
    findings = []
    if not (ROOT / path).exists():
        findings.append(f"{path}: is missing; scripts/checks/handover.py --write records the version")
    elif (recorded := read(path)) != now:
        before, after = set(recorded.splitlines()), set(now.splitlines())
        findings += [f"{path}: not in the sources any more: {line}" for line in recorded.splitlines() if line not in after]
        findings += [f"{path}: new in the sources: {line}" for line in now.splitlines() if line not in before]
        findings.append(f"{path}: messages or shared memory have changed (or their order); see kControlVersion in server/handover/handover.h")
    finish("handover", findings, f"messages and shared memory are those of version {number[1]}")


main()
