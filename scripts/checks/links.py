#!/usr/bin/env python3
"""Usage: scripts/checks/links.py
Checks all tracked *.md files:
- relative links lead to a tracked file or folder, and their #anchors to a heading of it
- paths in backticks and in code blocks that begin with a top folder of the tree exist
- in the READMEs of the product's and the tests' folders, other names of sources in backticks (`file.h`) exist somewhere in
  the tree; those that begin an item of a list (- `file.h`, `file.cc`: ...) exist in the README's folder or below
Placeholders in capitals (`tests/FOLDER/`) are skipped; `*` and `{a,b}` are patterns. CHANGELOG.md may name paths of earlier
releases.
"""
import fnmatch
import posixpath
import re
import sys
import urllib.parse

from tree import finish, read, tracked_files

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^|\n)((?:\n(?: {4}|\t).*)+)")  # lines after an empty one
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
ITEM = re.compile(r"^- ((?:`[^`]+`(?:, | and )?)+)[:,]", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
PATH = re.compile(r"(\.\./)*[A-Za-z0-9_.*{},-]+(/[A-Za-z0-9_.*{},-]+)*/?")
SOURCE = re.compile(r".*[A-Za-z0-9_*-]\.(cc|h|cu|c|S|def|proto|py|sh|cmake|md|ptx)")
PLACEHOLDER = re.compile(r"(.*[^A-Za-z0-9])?[A-Z]{2,}([^A-Za-z0-9].*)?")
NO_ROOMS = ("docs", "cmake", "examples")  # their pages and those at the top also name files of programs outside the tree


def slug(heading):
    """Returns the anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    found, counts = set(), {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = slug(heading)
        found.add(name if name not in counts else f"{name}-{counts[name]}")
        counts[name] = counts.get(name, 0) + 1
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def expand(pattern):
    """Expands the braces of a pattern: a.{h,cc} -> a.h, a.cc."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    return [name for part in braces[1].split(",") for name in expand(pattern[:braces.start()] + part + pattern[braces.end():])]


class Tree:
    def __init__(self, files):
        self.folders = {name[:slash.start()] for name in files for slash in re.finditer("/", name)}
        self.tops = {name for name in self.folders if "/" not in name}
        self.paths = set(files) | self.folders
        self.endings = {path[start:] for path in self.paths for start in (0, *(slash.end() for slash in re.finditer("/", path)))}

    def has(self, path):
        """True if a file or folder has this path, relative to the top; `path` may be a pattern."""
        path = posixpath.normpath(path)
        return path in self.paths or ("*" in path and bool(fnmatch.filter(self.paths, path)))

    def has_below(self, folder, path):
        path = path.rstrip("/")
        return self.has(f"{folder}/{path}") or bool(fnmatch.filter(self.paths, f"{folder}/*/{path}"))

    def has_anywhere(self, path):
        return path in self.endings or ("*" in path and bool(fnmatch.filter(self.endings, path)))


def split(text):
    """Returns a page's text without code blocks, and its code blocks."""
    without_fences = FENCE.sub("", text)
    blocks = [match[0] for match in FENCE.finditer(text)] + [match[0] for match in INDENTED.finditer(without_fences)]
    return INDENTED.sub("", without_fences), "\n".join(blocks)


def paths_in(words):
    """Returns the words that have the form of a path, with braces expanded."""
    words = (word.rstrip(",;:") for word in words.split())
    return [path for word in words if PATH.fullmatch(word) for path in expand(word) if not is_placeholder(path)]


def is_placeholder(path):
    return any(PLACEHOLDER.fullmatch(part) and not part.endswith(".md") for part in path.split("/"))


def link_faults(page, prose, tree):
    for match in LINK.finditer(SPAN.sub("", prose)):
        target = match[1] or match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if path != "." and not tree.has(path):
            yield f"links to {target}, which is no tracked file or folder"
        elif anchor and path.endswith(".md") and anchor not in anchors(read(path)):
            yield f"links to {target}: {path} has no such heading"


def path_faults(page, prose, blocks, tree):
    folder = posixpath.dirname(page)
    in_spans = paths_in(" ".join(SPAN.findall(prose)))
    for path in in_spans + paths_in(blocks):
        top, _, rest = path.partition("/")
        if top in tree.tops and rest and not tree.has(path) and not tree.has(posixpath.join(folder, path)):
            yield f"names {path}, which is no tracked file or folder"
    if page.split("/")[0] in NO_ROOMS or not page.endswith("/README.md"):
        return
    for path in in_spans:
        if SOURCE.fullmatch(path) and path.split("/")[0] not in tree.tops:
            if not tree.has(posixpath.join(folder, path)) and not tree.has_anywhere(path):
                yield f"names {path}, which is nowhere in the tree"
    for path in paths_in(" ".join(name for item in ITEM.findall(prose) for name in SPAN.findall(item))):
        if (SOURCE.fullmatch(path) or path.endswith("/")) and path.split("/")[0] not in tree.tops and not tree.has_below(folder, path):
            yield f"lists {path}, which is not in {folder}/"


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    files = tracked_files()
    tree, findings = Tree(files), []
    pages = [name for name in files if name.endswith(".md")]
    for page in pages:
        prose, blocks = split(read(page))
        faults = list(link_faults(page, prose, tree))
        if page != "CHANGELOG.md":
            faults += path_faults(page, prose, blocks, tree)
        findings += [f"{page}: {fault}" for fault in dict.fromkeys(faults)]
    finish("links", findings, f"links and paths of {len(pages)} pages exist")


if __name__ == "__main__":
    main()
