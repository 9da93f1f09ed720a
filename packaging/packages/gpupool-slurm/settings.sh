# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component=slurm
summary="GPUs of a pool for jobs of Slurm"
description="A plugin for Slurm: srun --gpupool=gpus=2,memory=8G takes a lease for the job. It fits the
release of Slurm for which it was built."
requires=(gpupool-common gpupool-client)
