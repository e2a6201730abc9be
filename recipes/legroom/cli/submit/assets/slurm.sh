export MASTER_ADDR MASTER_PORT WORLD_SIZE=$SLURM_NTASKS
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# srun starts the ranks itself, so that signals reach the training: torchrun would die of SIGUSR1.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))
    exec "$@"' rank "${training[@]}" &
ranks=$!

asked=no
trap 'asked=yes; kill -USR1 "$ranks"' USR1    # srun hands it on to every rank
trap 'kill -TERM "$ranks"' TERM
code=1
while kill -0 "$ranks" 2>/dev/null; do        # a signal ends `wait`, but not what it waits for
    wait "$ranks"
    code=$?
done

status=$(sed -n 's/^ *"status": "\([a-z]*\)".*/\1/p' "$folder/result.json" | sed -n 1p)
echo "attempt ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID: $status"
if [ "$status" = preempted ] && [ "$asked" = yes ]; then
    scontrol requeue "$SLURM_JOB_ID"
elif [ "$status" = preempted ]; then
    sleep 600    # SIGTERM: of scancel, or of a preemption, where SLURM requeues the job itself if it is still there
fi
exit "$code"
