#!/usr/bin/env bash
# Usage: tests/softroce/run.sh [OPTION...] [--] COMMAND [ARGUMENT...]
# Runs a command in a small virtual machine (QEMU, software emulation) with Soft-RoCE devices. Its kernel is Debian's (or
# Ubuntu's). Its root is this machine's root file system, read-only below an overlay in memory, so programs built here run
# there unchanged, in the same folder and with the same environment. The guest's writes are lost at the end.
# Output and exit status are those of the command.
#
# The guest has the devices rxe0 (10.77.0.1) and rxe1 (10.77.0.2), the two ends of the cable veth0-veth1, both with GID
# index 1; no other network; `ulimit -l unlimited`; and the variables GPUPOOL_SOFTROCE=1, GPUPOOL_TEST_RDMA_DEVICES and
# GPUPOOL_TEST_RDMA_ADDRESSES, the last two with words separated by spaces.
#
#   --writable FOLDER   keep the writes below FOLDER (may be repeated)
#   --timeout SECONDS   end the guest after this time (600)
#   --memory MIB        memory of the guest (3072)
#   --mtu BYTES         MTU of the cable (4500, which gives RoCE an MTU of 4096)
#   --console           show the guest's console at the end, on stderr
#   --prepare           only download a newer kernel, if there is one, to ${XDG_CACHE_HOME:-~/.cache}/gpupool/softroce
#
# Exit status other than the command's: 77 not possible on this machine (the reason is printed), 124 timeout, 125 the guest
# could not be started or died. One guest runs at a time; others wait for it.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
fail() { echo "softroce: $*" >&2 && exit 125; }
skip() { echo "softroce: skipped: $*" >&2 && exit 77; }
# shellcheck source=tests/softroce/kernel.sh disable=SC2154  # sets cache and kernel
source "$here/kernel.sh"

writable=() limit=600 memory=3072 mtu=4500 console=no prepare=no
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
    --console) console=yes ;;
    --prepare) prepare=yes ;;
    --writable | --timeout | --memory | --mtu)
      (($# > 1)) || fail "$1 needs a value"
      case $1 in
        --writable) writable+=("$(realpath -e "$2")") || fail "no folder $2" ;;
        --timeout) limit=$2 ;;
        --memory) memory=$2 ;;
        --mtu) mtu=$2 ;;
      esac
      shift
      ;;
    --) shift && break ;;
    -*) fail "unknown option '$1'; try --help" ;;
    *) break ;;
  esac
  shift
done
[[ $prepare == yes ]] || (($#)) || fail "no command; try --help"

[[ $(uname -m) == x86_64 ]] || skip "the guest runs on x86_64 only"
for tool in apt-get dpkg-deb qemu-system-x86_64 busybox xz zstd depmod modprobe ip rdma; do
  PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || skip "$tool is not installed (scripts/install-dependencies.sh)"
done
! ldd "$(command -v busybox)" &>/dev/null || skip "this busybox is not static (scripts/install-dependencies.sh)"
if [[ $prepare == yes ]]; then
  prepare_kernel new
  echo "$kernel"
  exit
fi
prepare_kernel

temporary=$(mktemp -d "${TMPDIR:-/tmp}/softroce.XXXXXX")
qemu=
trap '[[ -z $qemu ]] || kill $qemu 2>/dev/null || true; rm -rf "$temporary"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$temporary"/initramfs/{bin,guest}
cp -r "$kernel/modules" "$temporary/initramfs/modules"
cp "$(command -v busybox)" "$temporary/initramfs/bin/busybox"
cp "$here/init" "$temporary/initramfs/init"
cp "$here/guest.sh" "$temporary/initramfs/guest/guest.sh"
chmod 755 "$temporary/initramfs/init"
folder=$PWD command=("$@")
declare -p mtu writable folder command >"$temporary/initramfs/guest/settings"
export -p >"$temporary/initramfs/guest/environment"
(cd "$temporary/initramfs" && find . | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$temporary/initrd"

# qemu opens its outputs as files; these processes copy them to the real stdout and stderr.
exec {stdout}> >(exec cat)
stdout_cat=$!
exec {stderr}> >(exec cat >&2)
stderr_cat=$!
port() { arguments+=(-chardev "file,id=$1,path=$2" -device "virtserialport,chardev=$1,name=$1"); }
share() { # NAME PATH [OPTIONS]
  arguments+=(-fsdev "local,id=$1,path=${2//,/,,},security_model=none,multidevs=remap${3:-}"
    -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}
arguments=(-machine q35 -accel "tcg,thread=multi" -smp 2 -m "$memory"
  # Without CPU features that are slow when emulated ("rep movsb" copies single bytes) or broken: with fma, QEMU 7.2 faults
  # in kernels that softgpu has compiled.
  -cpu "max,-erms,-fsrm,-pclmulqdq,-la57,-fma"
  -nodefaults -no-user-config -display none -no-reboot -serial "file:$temporary/console"
  -kernel "$kernel/vmlinux" -initrd "$temporary/initrd"
  -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable \
cryptomgr.notests audit=0 apparmor=0"
  -device virtio-serial-pci)
port stdout "/dev/fd/$stdout"
port stderr "/dev/fd/$stderr"
port status "$temporary/status"
share root / ,readonly=on
for i in "${!writable[@]}"; do share "writable$i" "${writable[i]}"; done

exec {lock}>"$cache/guest.lock"
flock "$lock"
setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 "${arguments[@]}" </dev/null &
qemu=$!
ended=0
wait $qemu || ended=$?
qemu=
exec {stdout}>&- {stderr}>&- {lock}>&-
wait $stdout_cat $stderr_cat || true

status=$(cat "$temporary/status" 2>/dev/null || true)
if [[ -z $status || $console == yes ]]; then sed 's/^/console: /' "$temporary/console" | tail -n 60 >&2 || true; fi
[[ -z $status ]] || exit "$status"
if ((ended == 124)); then echo "softroce: timed out after $limit s" >&2 && exit 124; fi
fail "the guest died (qemu's status: $ended)"
