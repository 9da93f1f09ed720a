# Sourced by run.sh: the distribution's own kernel for the guest, kept in a cache.
# shellcheck shell=bash

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpupool/softroce
# In the order in which they are loaded; what they depend on comes before them. rdma_rxe does not start without
# crc32_generic.
modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay crc32_generic rdma_rxe rdma_ucm ib_umad veth sch_netem)

# apt with package lists of its own: they are fresh, and need no root.
private_apt() {
  local tool=$1
  shift
  LC_ALL=C "$tool" -qq -o "Dir::State=$work/state" -o "Dir::Cache=$work/cache" -o Dir::State::status=/dev/null \
    -o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}

# Fills `packages` with what the newest kernel of this machine's release is made of: one package in Debian's, three in
# Ubuntu's. Fails without one.
find_packages() {
  local image part
  image=$(private_apt apt-cache depends --no-recommends linux-image-amd64 linux-image-generic 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
  packages=()
  for part in linux-image linux-modules linux-modules-extra; do
    [[ -z $image || -z $(private_apt apt-cache show "$part${image#linux-image}" 2>/dev/null) ]] ||
      packages+=("$part${image#linux-image}")
  done
  ((${#packages[@]}))
}

# Sets `version`, and unpacks that kernel into $work unless the cache has it.
download_kernel() {
  local packages package
  mkdir -p "$work"/{state,cache,packages}
  for _ in 1 2 3; do  # a mirror may change meanwhile
    if private_apt apt-get update >"$work/log" 2>&1; then
      if ! find_packages; then
        ! grep -q 'Failed to fetch' "$work/log" || continue
        skip "this release has no kernel package that is known here (linux-image-amd64, linux-image-generic)"
      fi
      version=${packages[0]#linux-image-}
      [[ ! -d $cache/${version}_$key ]] || return 0
      (cd "$work/packages" && private_apt apt-get download "${packages[@]}") >>"$work/log" 2>&1 && break
    fi
  done
  compgen -G "$work/packages/*.deb" >/dev/null ||
    fail "cannot download a kernel: $(grep -E '^(E:|W: Failed)' "$work/log" | tail -n 1)"
  for package in "$work"/packages/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work" --exclude=./usr/share
  done
  if [[ -d $work/usr/lib/modules ]]; then mkdir -p "$work/lib" && mv "$work/usr/lib/modules" "$work/lib/modules"; fi
  [[ -s $work/boot/vmlinuz-$version && -d $work/lib/modules/$version ]] || fail "no kernel in ${packages[*]}"
}

# The ELF kernel inside the bzImage, which QEMU starts directly: unpacking it in the guest would take seconds of each
# start. The offsets are the boot protocol's: setup_sects, payload_offset, payload_length.
extract_kernel() {
  local image=$1 sectors offset length
  sectors=$(od -An -tu1 -j 497 -N 1 "$image") offset=$(od -An -tu4 -j 584 -N 4 "$image")
  length=$(($(od -An -tu4 -j 588 -N 4 "$image") - 4))
  head -c $(((sectors + 1) * 512 + offset + length)) "$image" | tail -c $length >"$work/payload"
  case $(od -An -tx4 -N 4 "$work/payload") in
    *587a37fd) xz -dc "$work/payload" ;;
    *fd2fb528) zstd -dcq "$work/payload" ;;
    *) cat "$image" ;;  # slower, but starts too
  esac
}

extract_modules() {
  local name file
  PATH=$PATH:/usr/sbin:/sbin
  depmod -b "$work" "$version" 2>>"$work/log"
  mkdir "$work/out/modules"
  for name in "${modules[@]}"; do
    modprobe -d "$work" -S "$version" --show-depends "$name" >>"$work/dependencies" 2>>"$work/log" ||
      fail "kernel $version has no $name"
  done
  while read -r file; do
    name=$(basename "$file")
    name=${name%%.*}.ko
    echo "$name" >>"$work/out/modules/list"
    case $file in
      *.xz) xz -dc "$file" ;;
      *.zst) zstd -dcq "$file" ;;
      *) cat "$file" ;;
    esac >"$work/out/modules/$name"
  done < <(awk '$1 == "insmod" && !seen[$2]++ { print $2 }' "$work/dependencies")
}

newest_kernel() {
  find "$cache" -maxdepth 1 -type d -name "*_$key" -printf '%T@ %p\n' | sort -rn | sed -n '1s/[^ ]* //p'
}

# prepare_kernel [new]: sets `kernel` to the folder with vmlinux and modules/. What is kept serves without a network;
# `new` asks for the release's newest. One at a time; a folder appears in the cache only when it is whole.
prepare_kernel() {
  local lock key work version status
  mkdir -p "$cache"
  exec {lock}>"$cache/prepare.lock"
  flock "$lock"
  key=$(sha256sum "${BASH_SOURCE[0]}" | head -c 8)
  kernel=$(newest_kernel)
  if [[ -z $kernel || ${1:-} == new ]]; then
    find "$cache" -mindepth 1 -maxdepth 1 -type d \( -name 'new.*' -o -mtime +60 \) -exec rm -rf {} +
    work=$(mktemp -d "$cache/new.XXXXXX")
    ( # what fails in here leaves nothing behind
      trap 'status=$?; rm -rf "$work"; case $status in 0 | 77 | 125) ;; *) fail "cannot unpack it" ;; esac' EXIT
      download_kernel
      [[ ! -d $cache/${version}_$key ]] || exit 0
      mkdir "$work/out"
      extract_kernel "$work/boot/vmlinuz-$version" >"$work/out/vmlinux"
      extract_modules
      mv "$work/out" "$cache/${version}_$key"
    )
    kernel=$(newest_kernel)
  fi
  exec {lock}>&-
}
