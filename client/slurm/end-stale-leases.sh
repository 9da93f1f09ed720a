#!/bin/sh
# Usage: end-stale-leases.sh FOLDER
# Ends the leases in FOLDER whose jobs are not on this node any more. The plugin starts it when slurmd starts: if a job
# ended while slurmd was down, no epilog has ended its lease. Waits until slurmctld answers. Needs Slurm's squeue.
set -u
cd "$1" || exit 1

folders() { # prints the folders of a node's jobs, JOB.RESTART-NODE
  for folder in *; do
    case $folder in [0-9]*.[0-9]*-"$1") echo "$folder" ;; esac
  done
}

nodes=$(for folder in [0-9]*.[0-9]*-*; do echo "${folder#*-}"; done | sort -u)
for node in $nodes; do
  [ "$node" != '*' ] || exit 0 # FOLDER is empty
  # Before the question, so that no job that starts meanwhile is among them.
  before=$(folders "$node")
  until jobs=$(squeue --noheader --nodelist="$node" --format=%A 2>/dev/null); do sleep 5; done
  for folder in $before; do
    case " $(echo "$jobs" | tr '\n' ' ') " in *" ${folder%%.*} "*) continue ;; esac
    # Renaming ends the lease; pool-lease may write one more file meanwhile.
    mv "$folder" ".ended-$folder" && { rm -rf ".ended-$folder" || rm -rf ".ended-$folder"; }
  done
done
