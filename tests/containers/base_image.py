"""A stand-in for debian:bookworm-slim: an image of this machine's shell, a few programs, and the C and C++ run time, because
tests download no images."""
import io
import os
import re
import shutil
import subprocess
import tarfile

PROGRAMS = ("bash", "cat", "head", "id", "ls", "rm", "sh", "sleep", "true")
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def place(path):
    """Returns the path with links of folders resolved: /lib/x.so -> /usr/lib/x.so."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def libraries_of(programs):
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"^\t(?:\S+ => )?(/\S+) \(", listed, re.MULTILINE))
    folder = next(os.path.dirname(path) for path in found if os.path.basename(path) == "libc.so.6")
    found |= {path for name in LIBRARIES if os.path.exists(path := os.path.join(folder, name))}
    return found


def write_archive(path):
    programs = [program for name in PROGRAMS if (program := shutil.which(name))]
    files = {place(program) for program in programs} | {place(library) for library in libraries_of(programs)}
    folders, parents = {"tmp", "root", "run", "usr/sbin", "etc"}, set()
    for name in [*files, *TEXTS, *folders]:
        name = os.path.dirname(name.strip("/"))
        while name:
            parents.add(name)
            name = os.path.dirname(name)
    with tarfile.open(path, "w") as archive:
        for name in sorted(folders | parents):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name in sorted(files):
            with open(name, "rb") as content:
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.mode, entry.size = 0o755, os.path.getsize(name)
                archive.addfile(entry, content)
        for name, text in TEXTS.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o644, len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
