"""hardening_test.py FILE...: checks that each file is position-independent, has full RELRO, a non-executable stack, stack
protectors and calls of fortified C library functions, and that on x86-64 its functions begin with endbr64."""
import re
import subprocess
import sys

ENDBR64 = bytes.fromhex("f30f1efa")


def readelf(file, *options):
    return subprocess.run(["readelf", "--wide", *options, file], capture_output=True, text=True, check=True).stdout


def functions(file):
    """Returns the addresses of exported driver functions and of main()."""
    symbols = re.findall(r"^\s*\d+: ([0-9a-f]+)\s+\d+ FUNC\s+GLOBAL\s+(DEFAULT|HIDDEN)\s+\d+ (\S+)", readelf(file, "--symbols"), re.M)
    return {name: int(address, 16) for address, visible, name in symbols if name == "main" or (visible == "DEFAULT" and name.startswith("cu"))}


def begins(file, address):
    """Returns the first 4 bytes of the function at the address."""
    for line in re.findall(r"^\s*LOAD\s+(.*)$", readelf(file, "--segments"), re.M):
        offset, virtual, _, size = (int(word, 16) for word in line.split()[:4])
        if virtual <= address < virtual + size:
            with open(file, "rb") as content:
                content.seek(offset + address - virtual)
                return content.read(4)
    raise SystemExit(f"{file}: {address:#x} is not in any segment")


def missing(file):
    header, segments, dynamic = readelf(file, "--file-header"), readelf(file, "--segments"), readelf(file, "--dynamic")
    imported = set(re.findall(r"UND (\w+)", readelf(file, "--dyn-syms")))
    if not re.search(r"Type:\s+DYN", header):
        yield "not position-independent"
    if "GNU_RELRO" not in segments:
        yield "no RELRO segment"
    if not re.search(r"BIND_NOW|Flags:.*\bNOW\b", dynamic):
        yield "lazy binding (no BIND_NOW), so the GOT stays writable"
    if not re.search(r"GNU_STACK.*\bRW\s", segments):
        yield "executable stack"
    if "__stack_chk_fail" not in imported:
        yield "no stack protector"
    if not any(re.fullmatch(r"__\w+_chk", name) and name != "__cxa_chk" for name in imported):
        yield "no fortified C library calls"
    if "X86-64" in header:
        known = functions(file)
        if not known:
            yield "no exported functions found"
        bare = [name for name, address in known.items() if begins(file, address) != ENDBR64]
        if bare:
            yield f"{len(bare)} of {len(known)} functions do not begin with endbr64, for example {bare[0]}"


def main():
    failures = [f"{file}: {what}" for file in sys.argv[1:] for what in missing(file)]
    print("\n".join(failures) or f"{len(sys.argv) - 1} files are hardened")
    return 1 if failures or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
