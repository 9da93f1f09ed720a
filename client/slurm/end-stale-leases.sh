#!/bin/sh
# Usage: end-stale-leases.sh FOLDER
# Ends the leases in FOLDER whose jobs are not on this node any more. The plugin starts it when slurmd starts: if a job
# ended while slurmd was down, no epilog has ended its lease. Waits until slurmctld answers. Needs Slurm's squeue.
set -u
cd "$1" || exit 1
rm -rf .ended-* # folders of leases that have ended, whose removal was interrupted

folders() { # prints the folders of jobs, JOB.RESTART-NODE
  for folder in [0-9]*.[0-9]*-*; do
    [ ! -d "$folder" ] || echo "$folder"
  done
}

jobs_on() { # prints the numbers of the jobs on a node
  while ! said=$(squeue --noheader --nodelist="$1" --format=%A 2>&1); do
    # The node was removed from slurm.conf, so no job is on it.
    case $said in *"Invalid node name"*) return ;; esac
    sleep 5
  done
  echo "$said" | tr '\n' ' '
}

for node in $(folders | cut -d - -f 2- | sort -u); do
  # Before the question, so that no job that starts meanwhile is among them.
  before=$(folders)
  jobs=$(jobs_on "$node")
  for folder in $before; do
    [ "${folder#*-}" = "$node" ] || continue
    case " $jobs " in *" ${folder%%.*} "*) continue ;; esac
    # Renaming ends the lease; pool-lease may write one more file meanwhile.
    mv "$folder" ".ended-$folder" && { rm -rf ".ended-$folder" || rm -rf ".ended-$folder"; }
  done
done
