"""Lists the files that the checks of this folder read, and prints their findings."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOT_TRACKED = {".git", ".cache", "build", "__pycache__"}  # when git does not list the files


def git_files(root):
    """Returns the names of git's tracked files, or None if git cannot list them."""
    if not (root / ".git").exists():  # a folder of another repository does not count
        return None
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=False)
    except FileNotFoundError:
        return None
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else None


def tracked_files(root=ROOT):
    """Returns the sorted paths, relative to `root`, of git's tracked files that exist; without git, of all files."""
    listed = git_files(root)
    if listed is not None:
        return sorted(name for name in listed if os.path.lexists(root / name))
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_TRACKED]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return sorted(names)


def read(name, root=ROOT):
    return (root / name).read_text(encoding="utf-8", errors="replace")


def finish(check, findings, summary):
    """Prints the findings, or the summary if there are none, and exits with 1 or 0."""
    for finding in findings:
        print(finding.encode("utf-8", "backslashreplace").decode())
    print(f"{check}: {len(findings)} findings" if findings else f"{check}: {summary}")
    sys.exit(1 if findings else 0)
