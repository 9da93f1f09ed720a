"""Runs clang-tidy for scripts/lint.sh on the sources of a build folder, several sources of one target in one run.

Most of clang-tidy's time goes into headers from outside the tree, so the members of a CMake unity file are checked
together, in a file that this program writes. Its folder is called UnifiedSource because clang's analyzer analyzes
functions of an included .cc file in full only if the including file's name has that word
(AnalysisManager::isInCodeFile); with CMake's own unity files half of the findings would be lost.

A run without findings leaves a stamp, named by a hash of all files of the tree that it read and, with --changed, of the lines
that it checked. A unit with a stamp is not checked again.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("client", "common", "protocol", "rdma", "server", "scheduler")
OTHERS = ("tests", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
MAX_ARGUMENT = 120_000  # bytes
FINDING = re.compile(r"^/\S+:\d+:\d+: (?:warning|error): .*")

# A unit is a list of sources that are checked in one run, with the flags of their target.
Unit = collections.namedtuple("Unit", "name sources flags folder")


def without_precompiled_header(flags):
    """clang cannot read GCC's. Sources name all that they need, so they compile without it."""
    kept = []
    for flag in flags:
        if flag.endswith("/cmake_pch.hxx"):
            kept.pop()  # -include
        else:
            kept.append(flag)
    return kept


def read_units(build):
    """Returns the units of a build folder's compile_commands.json. A source of several targets is in the first target's unit."""
    units, seen = [], set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        if file.suffix not in (".cc", ".cxx"):
            continue
        members = [file]
        if file.name.startswith("unity_"):
            members = [pathlib.Path(name) for name in INCLUDE.findall(file.read_text())]
        members = [m for m in members if m.is_relative_to(ROOT) and not m.is_relative_to(build) and m not in seen]
        seen.update(members)
        if not members:
            continue
        arguments = shlex.split(entry["command"])
        object_file = arguments[arguments.index("-o") + 1]
        flags = without_precompiled_header([a for a in arguments[1:] if a not in ("-c", "-o", object_file, str(file))])
        name = re.sub(r"\W+", "-", object_file.replace("CMakeFiles/", "").replace(".dir/", "-").removesuffix(".o"))
        units.append(Unit(name, members, flags, entry["directory"]))
    return units


class Includes:
    """Finds the files of the tree that a source includes, directly or indirectly. Includes name a path from the root of the
    tree or a file in the includer's folder."""

    def __init__(self):
        self.direct = {}

    def read(self, path):
        if path not in self.direct:
            found = set()
            for name in INCLUDE.findall(path.read_text(errors="replace")):
                if name.endswith(".pb.h"):  # generated from a .proto
                    name = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", name)
                found.update(p for p in (ROOT / name, path.parent / name) if p.is_file())
            self.direct[path] = found
        return self.direct[path]

    def closure(self, sources):
        found, todo = set(), list(sources)
        while todo:
            path = todo.pop()
            if path not in found:
                found.add(path)
                todo.extend(self.read(path))
        return found


def changed_lines(base):
    """Returns the differences to a commit: file -> list of [first line, last line]; an empty list for an untracked file, all of
    which is new."""
    def git(*words):
        return subprocess.run(["git", "-c", "core.quotePath=off", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace", check=True).stdout.split("\n")

    changed, file = {ROOT / name: [] for name in git("ls-files", "--others", "--exclude-standard") if name}, None
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", "--no-renames", "--diff-filter=d", "--src-prefix=a/", "--dst-prefix=b/", base, "--"):
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if line.startswith("+++ b/"):
            file = ROOT / line[len("+++ b/"):].rstrip("\t")
        elif hunk:
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.setdefault(file, []).append([max(first, 1), max(first + count - 1, first, 1)])
    return changed


def fingerprint(unit, read, settings, lines=""):
    digest = hashlib.sha256(settings)
    digest.update("\0".join(unit.flags).encode() + b"\0\0" + lines.encode())
    for path in sorted(read):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def select(units, includes, changed, includers, at_most):
    """Selects the changed sources and, for each changed header, `includers` sources that include it (0: all), in all at most
    `at_most` (0: unlimited). Returns the units and the number of sources left out."""
    sources = [source for unit in units for source in unit.sources]
    wanted = dict.fromkeys(source for source in sources if source in changed)  # an ordered set
    reads = {source: includes.closure([source]) for source in sources}
    for header in sorted(changed - set(sources)):
        readers = [source for source in sources if header in reads[source]]
        # Sources that are already selected come first, then those with the fewest includes.
        readers.sort(key=lambda source: (source not in wanted, len(reads[source])))
        wanted.update(dict.fromkeys(readers[:includers] if includers else readers))
    kept = set(list(wanted)[:at_most] if at_most else wanted)
    units = [unit._replace(sources=[source for source in unit.sources if source in kept]) for unit in units]
    return [unit for unit in units if unit.sources], len(wanted) - len(kept)


def write_database(units, folder):
    """Writes a source file for each unit with several sources, and a compile_commands.json for all. Returns name -> file."""
    files, database = {}, []
    for unit in units:
        file = unit.sources[0]
        if len(unit.sources) > 1:
            file = folder / f"{unit.name}.cc"
            file.write_text("".join(f'#include "{source}"  // NOLINT(bugprone-suspicious-include)\n' for source in unit.sources))
        files[unit.name] = file
        database.append({"directory": unit.folder, "file": str(file), "arguments": ["c++", *unit.flags, "-c", str(file)]})
    (folder / "compile_commands.json").write_text(json.dumps(database, indent=1))
    return files


def line_filter(changed, read):
    """clang-tidy's --line-filter for the changed lines of the files in `read`. Linux limits one argument to 128 KiB: where that is not
    enough, whole files are checked."""
    filters = [{"name": str(file), **({"lines": ranges} if ranges else {})} for file, ranges in changed.items() if file in read]
    text = json.dumps(filters)
    return text if len(text) < MAX_ARGUMENT else json.dumps([{"name": entry["name"]} for entry in filters])


def check(options, folder, file, lines):
    """Returns the findings of one run: lists of lines, a finding and its notes. `lines`: clang-tidy's --line-filter, or empty."""
    headers = f"^{re.escape(str(ROOT))}/({'|'.join(PRODUCT + OTHERS)})/"
    # The tables of protocol/calls exceed clang's limit of constexpr steps; the build's flags have options unknown to clang.
    checks = "-performance-*,-misc-*,-modernize-*" + (",-clang-analyzer-*" if options.quick else "")
    command = [options.tidy, "-p", str(folder), f"--config-file={ROOT}/.clang-tidy", f"--checks={checks}", "--quiet",
               "--warnings-as-errors=*", f"--header-filter={headers}", "--extra-arg=-fconstexpr-steps=100000000",
               "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unused-command-line-argument", *([f"--line-filter={lines}"] if lines else []), str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    findings = []
    for line in done.stdout.splitlines():
        if FINDING.match(line):
            findings.append([line])
        elif findings:
            findings[-1].append(line)
    if done.returncode != 0 and not findings:
        findings.append([f"{file}:1:1: error: clang-tidy ended with {done.returncode}: {done.stderr.strip()[-500:]}"])
    return findings


def check_all(options, folder, units, filters):
    """Checks the units and prints the findings. `filters`: line filters by unit name, or empty. Returns the findings and the names of the units without any."""
    files = write_database(units, folder)
    started, reported, clean = time.monotonic(), set(), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(check, options, folder, files[unit.name], filters.get(unit.name, "")): unit for unit in units}
        for done, run in enumerate(concurrent.futures.as_completed(runs), 1):
            unit, findings = runs[run], run.result()
            for finding in findings:
                if finding[0] not in reported:  # findings in headers are repeated by each unit that includes them
                    reported.add(finding[0])
                    print("\n".join(finding).replace(f"{ROOT}/", ""))
            if not findings:
                clean.append(unit.name)
            print(f"    [{done}/{len(units)}] {unit.name}: {len(unit.sources)} files, after {time.monotonic() - started:.0f} s", flush=True)
    return reported, clean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--tidy", required=True, help="path of clang-tidy")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--tests", action="store_true", help="also check tests and examples")
    parser.add_argument("--quick", action="store_true", help="without clang's analyzer")
    parser.add_argument("--changed", metavar="BASE", help="only lines that differ from this commit")
    parser.add_argument("--includers", type=int, default=0)
    parser.add_argument("--at-most", type=int, default=0)
    options = parser.parse_args()

    build = options.build.resolve()
    folders = PRODUCT + (OTHERS if options.tests else ())
    units = [unit for unit in read_units(build) if unit.sources[0].relative_to(ROOT).parts[0] in folders]
    includes, left_out, filters = Includes(), 0, {}
    if options.changed:
        changed = changed_lines(options.changed)
        units, left_out = select(units, includes, changed.keys(), options.includers, options.at_most)
        filters = {unit.name: line_filter(changed, includes.closure(unit.sources)) for unit in units}

    stamp_folder = build / "lint"
    stamp_folder.mkdir(exist_ok=True)
    version = subprocess.run([options.tidy, "--version"], stdout=subprocess.PIPE, check=True).stdout
    settings = version + str(options.quick).encode() + (ROOT / ".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()
    stamps, todo = {}, []
    for unit in units:
        read = includes.closure(unit.sources)
        stamps[unit.name] = stamp_folder / fingerprint(unit, read, settings, filters.get(unit.name, ""))
        if not stamps[unit.name].exists() and not (stamp_folder / fingerprint(unit, read, settings)).exists():
            todo.append(unit)
    with tempfile.TemporaryDirectory(prefix="UnifiedSource-", dir=stamp_folder) as folder:
        found, clean = check_all(options, pathlib.Path(folder), todo, filters)
    for name in clean:
        stamps[name].touch()

    known = sum(len(unit.sources) for unit in units) - sum(len(unit.sources) for unit in todo)
    print(f"clang-tidy: {len(found)} findings in {sum(len(unit.sources) for unit in todo)} files; {known} known to be clean, {left_out} left out")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
