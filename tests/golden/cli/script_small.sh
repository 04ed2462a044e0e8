#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=1
#SBATCH --job-name=small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/ROOT/small/submitit/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@120

# setup
# requeue on request of the node agents
rlaunch_control=/ROOT/small/control
rlaunch_request="requeue-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
{ trap "" TERM; while kill -0 "$$"; do if ls -A -- "$rlaunch_control" | grep -Fqx -- "$rlaunch_request" && scontrol requeue "$SLURM_JOB_ID"; then rm -f -- "$rlaunch_control/$rlaunch_request"; fi; sleep 2; done; } >/dev/null 2>&1 </dev/null &

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /ROOT/small/submitit/%j_%t_log.out --cpus-per-task=1 --kill-on-bad-exit=0 --wait=0 env --block-signal=TERM --block-signal=USR1 --block-signal=USR2 /opt/python/bin/python3 -u -m submitit.core._submit /ROOT/small/submitit
