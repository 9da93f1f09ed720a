#!/usr/bin/env bash
# new_releases_test.sh SOURCE_FOLDER: tests scripts/check-new-releases.sh with a pip that reads files instead of the network.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/versions"
cat >"$work/bin/python3" <<'PYTHON'
#!/usr/bin/env bash
[[ "$1 $2 $3 $4" == "-m pip index versions" ]] || exit 3
file=$(dirname "$0")/../versions/${!#}
[[ -f $file ]] || exit 1
printf '%s (x)\nAvailable versions: %s\n' "${!#}" "$(cat "$file")"
PYTHON
chmod +x "$work/bin/python3"

failed=0
# expect STATUS OUTPUT: runs the script on $work/list and checks its exit status and output.
expect() {
  local status=0 output
  output=$(PATH="$work/bin:$PATH" "$source/scripts/check-new-releases.sh" "$work/list" 2>/dev/null) || status=$?
  if [[ $status != "$1" || $output != "$2" ]]; then
    printf 'exited with %s and printed "%s"; expected %s and "%s"\n' "$status" "$output" "$1" "$2"
    failed=1
  fi
}

printf '# known\nnvidia-cuda-runtime==13.4.9\nnvidia-cuda-runtime==13.5.37  # newest\nnvidia-nccl-cu13==2.32.3\n' >"$work/list"
echo "13.5.37, 13.4.9, 13.0.48" >"$work/versions/nvidia-cuda-runtime"
echo "2.32.3, 2.9.9" >"$work/versions/nvidia-nccl-cu13"
expect 0 ""

echo "13.10.1, 13.5.37, 13.4.92, 13.4.9, 13.0.48" >"$work/versions/nvidia-cuda-runtime"
expect 1 $'nvidia-cuda-runtime==13.10.1\nnvidia-cuda-runtime==13.4.92'

echo "2.33.0, 2.32.3.post1, 2.32.3, 2.9.9" >"$work/versions/nvidia-nccl-cu13"
sed -i '/nvidia-cuda-runtime/d' "$work/list"
expect 1 $'nvidia-nccl-cu13==2.33.0\nnvidia-nccl-cu13==2.32.3.post1'

rm "$work/versions/nvidia-nccl-cu13"
expect 2 ""
: >"$work/list"
expect 1 ""

# The script can read the tests' own list: without answers from pip it exits with 2.
rm -f "$work/versions/"*
cp "$source/tests/python/releases.txt" "$work/list"
expect 2 ""
exit $failed
