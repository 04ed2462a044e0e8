#!/bin/bash

# Parameters
#SBATCH --account=physics
#SBATCH --comment='it'"'"'s $(touch pwned)'
#SBATCH --constraint='a100&ib'
#SBATCH --cpus-per-task=6
#SBATCH --exclusive
#SBATCH --gpus-per-node=2
#SBATCH --job-name=full
#SBATCH --mem=4096M
#SBATCH --nodes=2-4
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/ROOT/full/submitit/%j_0_log.out
#SBATCH --partition=low
#SBATCH --qos=normal
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=91

# setup
module load cuda
export X='a b'
# requeue on request of the node agents
rlaunch_control=/ROOT/full/control
rlaunch_request="requeue-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
{ trap "" TERM; while kill -0 "$$"; do if ls -A -- "$rlaunch_control" | grep -Fqx -- "$rlaunch_request" && scontrol requeue "$SLURM_JOB_ID"; then rm -f -- "$rlaunch_control/$rlaunch_request"; fi; sleep 2; done; } >/dev/null 2>&1 </dev/null &

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /ROOT/full/submitit/%j_%t_log.out --cpus-per-task=6 --kill-on-bad-exit=0 --wait=0 env --block-signal=TERM --block-signal=USR1 --block-signal=USR2 /opt/python/bin/python3 -u -m submitit.core._submit /ROOT/full/submitit
