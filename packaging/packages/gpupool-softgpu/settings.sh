# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component=softgpu
summary="CUDA device that computes on the CPU"
description="softgpu executes PTX on the CPU, for trying and testing gpupool, and programs with few
computations, on machines without a GPU: poold --device softgpu."
requires=(gpupool-common)
