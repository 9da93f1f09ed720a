#!/bin/sh
# make_images.sh NVCC SOURCES OUT: compiles kernels.cu and variables.cu of the folder SOURCES with options that give
# different images.
# Images that an older nvcc cannot compile are left out; the tests expect them of newer versions only.
set -u
nvcc=$1 sources=$2 out=$3
rm -rf "$out" && mkdir -p "$out" && cd "$out" || exit 1
compile() {
  name=$1
  shift
  "$nvcc" "$@" -o "$name" "$sources/$source.cu" > "$name.log" 2>&1 || rm -f "$name"
}
source=kernels
gencode="-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_86 -gencode arch=compute_80,code=compute_80"
compile default.fatbin -fatbin
# shellcheck disable=SC2086  # a list of options
compile several.fatbin -fatbin $gencode
compile cubin_only.fatbin -fatbin -gencode arch=compute_80,code=sm_80
compile ptx_only.fatbin -fatbin -gencode arch=compute_80,code=compute_80
compile relocatable.fatbin -fatbin -rdc=true
compile options.fatbin -fatbin -lineinfo -maxrregcount=32
compile debug.fatbin -fatbin -G
compile plain.fatbin -fatbin -no-compress
compile lz4.fatbin -fatbin --compress-mode=speed
compile zstd.fatbin -fatbin --compress-mode=size
compile exact.fatbin -fatbin -gencode arch=compute_90a,"code=[sm_90a,compute_90a]" -gencode arch=compute_90,code=sm_90
compile family.fatbin -fatbin -gencode arch=compute_100f,"code=[sm_100f,compute_100f]"
compile lto.fatbin -fatbin -gencode arch=compute_80,"code=[lto_80,sm_80]"
compile kernels.cubin -cubin -arch=sm_80
compile kernels.ptx -ptx -arch=compute_80
compile large.cubin -cubin -arch=sm_90 -DLARGE_PARAMS
compile large.ptx -ptx -arch=compute_90 -DLARGE_PARAMS
source=variables
compile variables.cubin -cubin -arch=sm_80
compile variables.ptx -ptx -arch=compute_80
compile variables.fatbin -fatbin -gencode arch=compute_80,"code=[sm_80,compute_80]"
compile heap.cubin -cubin -arch=sm_80 -DHEAP
compile heap.ptx -ptx -arch=compute_80 -DHEAP
compile first.ptx -ptx -rdc=true -arch=compute_80
compile second.ptx -ptx -rdc=true -arch=compute_80 -DSECOND
compile relocatable.cubin -cubin -rdc=true -arch=sm_80
compile first.o -dc -arch=sm_80
compile second.o -dc -arch=sm_80 -DSECOND
"$nvcc" -dlink -cubin -arch=sm_80 first.o second.o -o linked.cubin > linked.cubin.log 2>&1 || rm -f linked.cubin
touch 'done'
