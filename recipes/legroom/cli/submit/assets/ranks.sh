# Starts a rank for each GPU of this machine, with the variables that torchrun would set, and waits for all of them.
# (torchrun itself ends its ranks 30 s after SIGTERM, which may be too early for a checkpoint, and then ends with 1.)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500} WORLD_SIZE=$((MACHINES * RANKS)) LOCAL_WORLD_SIZE=$RANKS
export LEGROOM_WAITS_FOR_RANKS=1    # every rank may exit with the code of `preempted`
ranks=()
for ((local = 0; local < RANKS; local++)); do
    RANK=$((MACHINE * RANKS + local)) LOCAL_RANK=$local "$@" &
    ranks+=("$!")
done
trap 'kill -TERM "${ranks[@]}" 2>/dev/null' TERM

code=0
deadline=
while [ "${#ranks[@]}" -gt 0 ]; do
    sleep 1 &
    wait "$!"                           # which a signal ends
    alive=()
    for rank in "${ranks[@]}"; do
        if kill -0 "$rank" 2>/dev/null; then
            alive+=("$rank")
            continue
        fi
        wait "$rank"
        ended=$?
        if [ "$ended" != 0 ]; then      # an error counts, and not that others were preempted
            case $code in 0 | "$PREEMPTED") code=$ended ;; esac
        fi
    done
    ranks=("${alive[@]}")
    if [ "$code" != 0 ] && [ "$code" != "$PREEMPTED" ]; then
        : "${deadline:=$((SECONDS + 60))}"    # the others write why they end
        if [ "$SECONDS" -gt "$deadline" ]; then
            kill -KILL "${ranks[@]}" 2>/dev/null
        fi
    fi
done
exit "$code"
