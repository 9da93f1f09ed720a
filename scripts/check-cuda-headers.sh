#!/usr/bin/env bash
# check-cuda-headers.sh [VERSION...]: does the tree compile against the cuda.h of these CUDA versions?
# Fetches the headers from NVIDIA's Python packages (pip, network) into build/cuda-headers, once per version, and runs the
# compiler's checks (no code is made) over every source of protocol/, client/, server/ and tests/protocol/cuda/ that may include cuda.h.
# Needs a build in build/dev, whose generated sources it uses. Default versions: 11.8.89 12.0.146 12.4.127 12.9.79.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { usage; exit 0; }

build=$root/build/dev
[[ -f $build/compile_commands.json ]] || die "no $build/compile_commands.json: build it first"
versions=("$@")
[[ ${#versions[@]} -gt 0 ]] || versions=(11.8.89 12.0.146 12.4.127 12.9.79)

failed=0
for version in "${versions[@]}"; do
  folder=$root/build/cuda-headers/$version
  if [[ ! -f $folder/include/cuda.h ]]; then
    say "Fetching the headers of CUDA $version"
    wheels=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --dest "$wheels" "nvidia-cuda-runtime-cu${version%%.*}==$version"
    mkdir -p "$folder"
    python3 - "$wheels" "$folder" <<'PYTHON'
import glob, os, shutil, sys, zipfile
wheels, folder = sys.argv[1:]
prefix = "nvidia/cuda_runtime/include/"
for wheel in glob.glob(wheels + "/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(prefix) and not name.endswith("/"):
                target = os.path.join(folder, "include", name[len(prefix):])
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with archive.open(name) as source, open(target, "wb") as out:
                    shutil.copyfileobj(source, out)
PYTHON
    rm -rf "$wheels"
  fi

  say "Compiling against cuda.h of CUDA $version"
  python3 - "$root" "$build/compile_commands.json" "$folder/include" <<'PYTHON' || failed=1
import json, os, re, shlex, subprocess, sys
root, commands, include = sys.argv[1:]
bad = []
checked = 0
for entry in json.load(open(commands)):
    source = os.path.relpath(entry["file"], root)
    words = shlex.split(entry["command"])
    if not source.endswith(".cc") or not source.startswith(("protocol/", "client/", "server/", "tests/protocol/cuda/")):
        continue
    toolkits = [i for i, word in enumerate(words[:-1]) if word == "-isystem" and os.path.exists(words[i + 1] + "/cuda.h")]
    if not toolkits:
        continue
    # The wheels leave out cudaProfiler.h, which has been the same since CUDA 4: taken from the installed toolkit.
    words += ["-idirafter", words[toolkits[0] + 1]]
    for i in toolkits:
        words[i + 1] = include
    words = [word for word in words if not word.endswith("ccache")]
    for flag in ("-o", "-MF", "-MT"):
        while flag in words:
            at = words.index(flag)
            del words[at:at + 2]
    words = [word for word in words if word not in ("-c", "-MD")] + ["-fsyntax-only"]
    checked += 1
    run = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
    if run.returncode != 0:
        errors = [line for line in run.stderr.splitlines() if re.search(r"\berror:", line)]
        bad.append(source)
        print(f"    {source}: {len(errors)} errors")
        for line in errors[:3]:
            print("      ", line)
print(f"    {checked - len(bad)} of {checked} sources compile")
sys.exit(1 if bad or checked == 0 else 0)
PYTHON
done
exit "$failed"
