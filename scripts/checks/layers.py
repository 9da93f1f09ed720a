#!/usr/bin/env python3
"""Usage: scripts/checks/layers.py [--rows]
Fails if an include of the product's sources runs against the table layers.toml: the order of the layers, the rooms that
each room may include, file pairs that are excepted, and cycles of rooms that are known. Fails too if a row of the table is
no longer needed. --rows prints the rows [rooms] and [[cycles]] as the includes are, as a start for a changed table.
"""
import fnmatch
import posixpath
import re
import sys
import tomllib

from tree import finish, read, tracked_files

TABLE = "scripts/checks/layers.toml"
OUTSIDE = ("tests", "examples", "cmake")  # include whatever they test, show or build
SOURCE = re.compile(r".*\.(cc|h|cu|c|S|def)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.MULTILINE)


class Table:
    """layers.toml, whose comments describe its parts."""

    def __init__(self, text):
        table = tomllib.loads(text)
        self.layers = table["layers"]  # layer -> layers that it may include
        self.rooms = table["rooms"]  # room -> patterns of rooms that it may include
        self.exceptions = table.get("exceptions", [])
        self.cycles = [sorted(cycle["rooms"]) for cycle in table.get("cycles", [])]
        self.without_reason = [row for row in self.exceptions + table.get("cycles", []) if not row.get("reason")]

    def room_of(self, name):
        """Returns the room with the longest path that `name` is in, or None."""
        folder = posixpath.dirname(name)
        while folder and folder not in self.rooms:
            folder = posixpath.dirname(folder)
        return folder or None

    def exception(self, source, target):
        """Returns the index of the first exception for an include, or None."""
        for index, row in enumerate(self.exceptions):
            if fnmatch.fnmatchcase(source, row["from"]) and fnmatch.fnmatchcase(target, row["to"]):
                return index
        return None

    def allows_layer(self, room, other):
        mine, its = layer_of(room), layer_of(other)
        return mine == its or its in self.layers[mine]

    def allows_room(self, room, other):
        return room == other or any(matches(pattern, other) for pattern in self.rooms[room])

    def faults(self):
        for room, patterns in self.rooms.items():
            if layer_of(room) not in self.layers:
                yield f"[rooms] {room}: its top folder is not in [layers]"
                continue
            for pattern in patterns:
                reached = [other for other in self.rooms if matches(pattern, other)]
                if not reached:
                    yield f"[rooms] {room}: {pattern} matches no room"
                for other in reached:
                    if layer_of(other) in self.layers and not self.allows_layer(room, other):
                        yield f"[rooms] {room}: may not include {other}, because [layers] has no {layer_of(other)} in the row of {layer_of(room)}"
        for row in self.without_reason:
            yield f"{row}: has no reason"


def layer_of(room):
    return room.split("/")[0]


def matches(pattern, room):
    """True for the room itself and, for a pattern ROOM/*, for ROOM and all rooms below it."""
    return room == pattern or (pattern.endswith("/*") and (room + "/").startswith(pattern[:-1]))


def resolve(source, quote, name, files):
    """Returns the file of the tree that an include names, '' for a file from outside the tree, or None for a quoted name that is
    not found. A generated header stands for the file that it is generated from."""
    generated = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", name)
    for path in (name, generated, name + ".in"):
        for candidate in (path, posixpath.normpath(posixpath.join(posixpath.dirname(source), path))):
            if candidate in files:
                return candidate
    return None if quote == '"' else ""


def is_checked(name):
    return SOURCE.fullmatch(name) and layer_of(name) not in OUTSIDE


def read_includes(files):
    """Yields (source, line, name, target) of each include of the product's sources; the target is that of resolve()."""
    for source in sorted(files):
        if is_checked(source):
            text = read(source)
            for match in INCLUDE.finditer(text):
                line = text.count("\n", 0, match.start(2)) + 1
                yield source, line, match[2], resolve(source, match[1], match[2], files)


def find_cycles(edges):
    """Returns the sets of rooms that include each other, directly or indirectly (strongly connected components), as sorted lists."""
    def reachable(start, graph):
        found, todo = set(), [start]
        while todo:
            for room in graph.get(todo.pop(), ()):
                if room not in found:
                    found.add(room)
                    todo.append(room)
        return found

    graph, reverse = {}, {}
    for room, other in edges:
        graph.setdefault(room, set()).add(other)
        reverse.setdefault(other, set()).add(room)
    cycles = {tuple(sorted(reachable(room, graph) & reachable(room, reverse))) for room in graph}
    return sorted(list(cycle) for cycle in cycles if cycle)


def check_includes(table, files):
    """Returns the findings and the includes between rooms that are no exceptions: (room, room) -> (source, target) pairs."""
    findings, edges, needed = [], {}, set()
    for source, line, name, target in read_includes(files):
        if target == "":
            continue
        where = f"{source}:{line}: includes {name}"
        if target is None:
            findings.append(f"{where}, which is not in the tree; write outside headers as <{name}>")
            continue
        room, other = table.room_of(source), table.room_of(target)
        if room is None or room == other:  # check_rooms() finds sources without a room
            continue
        excepted = table.exception(source, target)
        if other is None:
            fault = f"{where}, which is in no room"
        elif not table.allows_layer(room, other):
            fault = f"{where}: layer {layer_of(room)} may not include layer {layer_of(other)}"
        elif not table.allows_room(room, other):
            fault = f"{where}: room {room} may not include room {other}; add it to the room's row only if that is the intended direction"
        else:
            fault = None
        if fault and excepted is not None:
            needed.add(excepted)
        else:
            edges.setdefault((room, other), []).append((source, target))
            findings += [fault] if fault else []
    for index, row in enumerate(table.exceptions):
        if index not in needed:
            findings.append(f"{TABLE}: the exception {row['from']} -> {row['to']} is no longer needed; remove it")
    return list(dict.fromkeys(findings)), {edge: pairs for edge, pairs in edges.items() if edge[1]}


def check_cycles(table, edges):
    cycles = find_cycles(edges)
    for cycle in cycles:
        if cycle not in table.cycles:
            inside = [f"{room} -> {other} ({len(pairs)}: {pairs[0][0]} includes {pairs[0][1]})" for (room, other), pairs in sorted(edges.items()) if room in cycle and other in cycle]
            yield "these rooms include each other, which [[cycles]] does not list: " + " ".join(cycle) + "".join(f"\n    {edge}" for edge in inside)
    for cycle in table.cycles:
        if cycle not in cycles:
            yield f"{TABLE}: the cycle of {' '.join(cycle)} is not (or no longer) one; correct the row or remove it"


def check_rooms(table, files):
    """Finds sources outside all rooms and rooms without files."""
    for name in sorted(files):
        if is_checked(name) and table.room_of(name) is None:
            yield f"{name}: is in no room of {TABLE}; add a row for its folder"
    used = {table.room_of(name) for name in files}
    for room in table.rooms:
        if room not in used:
            yield f"{TABLE}: room {room} has no files; remove its row"


def print_rows(table, edges):
    quoted = lambda rooms: ", ".join(f'"{room}"' for room in rooms)
    for room in sorted(table.rooms):
        print(f'"{room}" = [{quoted(sorted(other for mine, other in edges if mine == room))}]')
    for cycle in find_cycles(edges):
        print(f"[[cycles]]\nrooms = [{quoted(cycle)}]")


def main():
    if sys.argv[1:] not in ([], ["--rows"]):
        sys.exit(__doc__)
    table = Table(read(TABLE))
    files = set(tracked_files())
    findings = [f"{TABLE}: {fault}" for fault in table.faults()]
    if findings:
        finish("layers", findings, "")
    findings, edges = check_includes(table, files)
    edges = {(room, other): pairs for (room, other), pairs in edges.items() if table.allows_layer(room, other)}
    if sys.argv[1:]:
        print_rows(table, edges)
        return
    findings += check_cycles(table, edges)
    findings += check_rooms(table, files)
    finish("layers", findings, f"the includes between {len(table.rooms)} rooms follow {TABLE}")


if __name__ == "__main__":
    main()
