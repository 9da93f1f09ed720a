#!/usr/bin/env python3
"""Usage: scripts/checks/versions.py [--write [--unreleased]]
Compares what programs of different versions say to each other with the versions that were recorded:

- server/handover/versions/N.txt: the messages between poold and its workers, and the memory that both map, of kControlVersion
  N. After an upgrade poold has workers of older versions. Any other change than the one below needs a new version, as
  server/handover/handover.h says.
- protocol/wire/versions/N.txt: what clients and servers send, of kProtocolVersion N: they may be of different releases. What
  is recorded must stay; new commands, messages and rows may be added, if a peer that does not know them never gets them.

In both, a field `reserved` may get another name: those who do not know it send 0, which must mean what it meant before, and must
not be sent anything else.

--write records versions that are not recorded yet, and additions. With --unreleased it also replaces what is recorded: only
for a version that no release has had.
"""
import dataclasses
import fnmatch
import re
import sys

from tree import ROOT, finish, read, tracked_files



@dataclasses.dataclass
class Kind:
    """One of the two languages."""
    number: str  # the file and the constant of the version
    constant: str
    folder: str
    sources: tuple  # names of files, or patterns
    may_grow: bool
    advice: str


KINDS = (
    Kind("server/handover/handover.h", "kControlVersion", "server/handover/versions",
         ("server/handover/control.def", "server/handover/control_messages.h", "server/handover/handover.h", "server/quota/session_page.h",
          "server/quota/account.h", "server/quota/shared_allocations.h", "server/quota/turn_word.h", "protocol/wire/checkpoint.h",
          "protocol/wire/images.h", "protocol/wire/peers.h", "protocol/control/quota.def"), False,
         "messages or shared memory have changed (or their order); see kControlVersion in server/handover/handover.h"),
    Kind("protocol/wire/frame.h", "kProtocolVersion", "protocol/wire/versions", ("protocol/wire/*.def", "protocol/wire/*.h", "protocol/calls/*.def"),
         True, "peers of other releases would misunderstand this; see docs/wire-format.md"),
)
ROWS = re.compile(r"^(CONTROL|COMMAND|QUOTA_IN_WORKERS|CUDA_\w+)\(([^()]*)\)", re.MULTILINE)
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"\)\s*(const|noexcept)?\s*$")


def row_of(match):
    """A row without what is not sent: of a quota only the type and the name of the member matter, of a function its number
    and name. None: nothing of the row is sent."""
    words = [word.strip() for word in match[2].split(",")]
    if match[1].startswith("CUDA_"):
        return f"CUDA({words[0]}, {words[1]})" if words[0].startswith("0x") else None
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
        return [row for row in map(row_of, ROWS.finditer(text)) if row]
    text = re.sub(r"^[ \t]*#.*?(?<!\\)$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = []
    for statement in re.split(r"(?<=[;{}])", without_functions(text)):
        words = " ".join(statement.split())
        is_code = "(" in words or words.startswith(("return ", "using ", "namespace ", "template ", "friend ", "if ", "else "))
        if words and words not in ("{", "}", "};", ";") and not is_code and not re.match(r"constexpr uint\d+_t k(Control|Protocol)Version\b", words):
            lines.append(words)
    return lines


def text_of(kind):
    files = [name for pattern in kind.sources for name in tracked_files() if fnmatch.fnmatchcase(name, pattern)]
    return "".join(f"# {name}\n" + "".join(f"{line}\n" for line in layout(name)) for name in files)


def declarations(lines):
    """Splits a layout into rows and constants, one line each, and structs and enumerations with all their lines."""
    found = []
    for line in lines:
        begins = line.startswith("#") or re.match(r"(template |struct |enum |constexpr |CUDA\(|[A-Z]+\()", line)
        if begins or not found:
            found.append([line])
        else:
            found[-1].append(line)
    return found


def enumerators(declaration):
    return {" ".join(word.split()) for word in "".join(declaration[1:]).strip(" }").split(",") if word.strip()}


def stays(recorded, now):
    """True if a line is as it was recorded, or gives a reserved field a name."""
    field = re.fullmatch(r"(uint\d+_t) reserved( = 0)?;", recorded)
    return recorded == now or bool(field and re.fullmatch(rf"{field[1]} \w+{field[2] or ''};", now))


def all_stay(recorded, now):
    return len(recorded) == len(now) and all(map(stays, recorded, now))


def has_grown(recorded, now):
    """True if all that is recorded is still there: rows, constants and structs as they were, enumerations with the same values."""
    there = declarations(now)
    for declaration in declarations(recorded):
        if declaration[0].startswith("enum "):
            same = any(one[0] == declaration[0] and enumerators(declaration) <= enumerators(one) for one in there)
        else:
            same = any(all_stay(declaration, one) for one in there)
        if not same:
            return False
    return True


def faults(kind, words):
    number = re.search(rf"constexpr uint\d+_t {kind.constant} =\s+(\d+);", read(kind.number))
    if not number:
        return [f"{kind.number}: {kind.constant} was not found"]
    path, now = f"{kind.folder}/{number[1]}.txt", text_of(kind)
    recorded = read(path).splitlines() if (ROOT / path).exists() else []
    grows = all_stay(recorded, now.splitlines()) or (bool(recorded) and kind.may_grow and has_grown(recorded, now.splitlines()))
    if "--write" in words and (grows or "--unreleased" in words or not (ROOT / path).exists()):
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(now, encoding="utf-8")
    if not (ROOT / path).exists():
        return [f"{path}: is missing; scripts/checks/versions.py --write records the version"]
    before, after = read(path).splitlines(), now.splitlines()
    if before != after and all_stay(before, after):
        return [f"{path}: a reserved field has got a name: scripts/checks/versions.py --write records it"]
    if before == after or grows:
        return []
    findings = [f"{path}: not in the sources any more: {line}" for line in before if line not in set(after)]
    if not kind.may_grow:
        findings += [f"{path}: new in the sources: {line}" for line in after if line not in set(before)]
    return findings + [f"{path}: {kind.advice}"]


finish("versions", [fault for kind in KINDS for fault in faults(kind, sys.argv[1:])],
       "messages and shared memory are those of the recorded versions")
