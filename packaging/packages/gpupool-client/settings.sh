# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component=client
summary="runs CUDA programs on GPUs of other machines"
description="pool-run starts an unmodified CUDA program whose driver calls are executed by a GPU host or on
GPUs leased from a pool. pool-smi shows the GPUs, pool-cdi describes them to container engines.

The library libcuda.so.1 of this package is in a folder that only pool-run and other parts of
gpupool name, so NVIDIA's driver on the same machine stays the one that other programs load."
requires=(gpupool-common)
suggests=(libibverbs1 librdmacm1 ibverbs-providers)
