#!/usr/bin/env bash
# Usage: scripts/check-cuda-headers.sh [--preset NAME] [VERSION...]
# Checks that the product compiles against the cuda.h of these CUDA versions. Downloads the headers from NVIDIA's
# Python packages (with pip) into build/cuda-headers, once per version, and runs the compiler with -fsyntax-only on every
# C++ source of the product that may include cuda.h, and of tests/protocol/driver. (The other tests are always built with
# cuda.h of CUDA 13.0.) Needs a finished build of the preset (default: dev), whose generated sources it uses.
# Default versions: 11.8.89 12.0.146 12.4.127 12.9.79.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { usage; exit 0; }

preset=dev
if [[ ${1:-} == --preset ]]; then preset=${2:?--preset needs a name} && shift 2; fi
build=$root/build/$preset
[[ -f $build/compile_commands.json ]] || die "no $build/compile_commands.json: build it first"
! grep -q '/Unity/' "$build/compile_commands.json" || die "the preset $preset compiles several sources as one: build and name another, such as dev"
versions=("$@")
[[ ${#versions[@]} -gt 0 ]] || versions=(11.8.89 12.0.146 12.4.127 12.9.79)

failed=0
for version in "${versions[@]}"; do
  folder=$root/build/cuda-headers/$version
  "$root/scripts/fetch-cuda-headers.sh" "$version" "$folder"

  say "Compiling against cuda.h of CUDA $version"
  python3 - "$root" "$build/compile_commands.json" "$folder/include" <<'PYTHON' || failed=1
import concurrent.futures, json, os, re, shlex, subprocess, sys
root, commands, include = sys.argv[1:]

def errors_of(entry):
    """Returns the source and the compiler's errors, or None instead of errors for a source that is not compiled with cuda.h."""
    source = os.path.relpath(entry["file"], root)
    words = shlex.split(entry["command"])
    toolkits = [i for i, word in enumerate(words[:-1]) if word == "-isystem" and os.path.exists(words[i + 1] + "/cuda.h")]
    if not source.endswith(".cc") or not toolkits or not source.startswith(("common/", "protocol/", "client/", "server/", "tests/protocol/")):
        return source, None
    # The wheels lack cudaProfiler.h, which has not changed since CUDA 4: it comes from the installed toolkit.
    words += ["-idirafter", words[toolkits[0] + 1]]
    for i in toolkits:
        words[i + 1] = include
    words = [word for word in words if not word.endswith("ccache")]
    for flag in ("-o", "-MF", "-MT"):
        while flag in words:
            at = words.index(flag)
            del words[at:at + 2]
    words = [word for word in words if word not in ("-c", "-MD")] + ["-fsyntax-only"]
    run = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if re.search(r"\berror:", line)]
    return source, (errors or [run.stderr]) if run.returncode != 0 else []

checked = bad = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for source, errors in pool.map(errors_of, json.load(open(commands))):
        if errors is None:
            continue
        checked += 1
        if checked % 100 == 0:
            print(f"    {checked} sources checked", flush=True)
        if errors:
            bad += 1
            print(f"    {source}: {len(errors)} errors", *errors[:3], sep="\n      ", flush=True)
print(f"    {checked - bad} of {checked} sources compile")
sys.exit(1 if bad or checked == 0 else 0)
PYTHON
done
exit "$failed"
