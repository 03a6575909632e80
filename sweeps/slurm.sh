#!/bin/bash
# Eight workers on a Slurm cluster, each at the runs that nobody else is at; `fssl status` tells how far they are.
#
#     sbatch sweeps/slurm.sh ssfl/tab2 --profile laptop
#     sbatch --gpus-per-task=1 sweeps/slurm.sh ssfl/tab2 --profile gpu
#
# Submitted from the checkout, which all nodes see with its .venv and its results. A worker that is told to stop, because
# its time is over or others need the node, saves its runs and ends with 76: then it is queued again.
#SBATCH --job-name=fssl
#SBATCH --array=0-7
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.log
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
. .venv/bin/activate || exit 1

jobs=(--jobs "${SLURM_CPUS_PER_TASK:-1}")
if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    jobs=() # one run on each GPU
fi
fssl work "${jobs[@]}" "$@" &
worker=$!
trap 'kill -TERM "$worker"' TERM
wait "$worker"
code=$?
while kill -0 "$worker" 2>/dev/null; do # the signal has ended the wait, not yet the worker
    wait "$worker"
    code=$?
done
if ((code == 76)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
