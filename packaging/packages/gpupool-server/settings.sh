# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component=server
summary="serves the GPUs of this host to programs on other machines"
description="poold executes the CUDA driver calls of remote programs, each program in a confined process of
its own, within the quotas of its tenant. It needs NVIDIA's driver, or gpupool-softgpu.

The service poold is neither enabled nor started by the installation."
requires=(gpupool-common)
suggests=(gpupool-softgpu libibverbs1 librdmacm1 ibverbs-providers)
