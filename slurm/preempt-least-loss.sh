#!/bin/sh
# Free N nodes of a partition at the least loss: a sample for sites, to be adapted.
#
#   preempt-least-loss.sh N [PARTITION]          print the jobs, cheapest first, and what each would lose
#   preempt-least-loss.sh --do N [PARTITION]     and ask them to leave: they save, and requeue themselves
#
# Runs under rlaunch publish in their job's comment when their newest checkpoint became durable and how many GPUs would
# compute again: "rlaunch1 saved=SECONDS step=N gpus=N". Jobs that publish nothing are never chosen. A job's user may
# write anything into a comment: it is read as numbers here, and never executed. `rlaunch victims` solves the same
# choice exactly; this takes the cheapest per node until it has enough.
set -eu
act=print
if [ "${1-}" = --do ]; then act=ask; shift; fi
case "${1-}" in
    '' | *[!0-9]*) echo "usage: $0 [--do] N [PARTITION]" >&2; exit 2 ;;
esac
needed=$1

# A running job that Slurm is just signalling is in another state for a moment.
squeue --noheader --states=running,signaling,resizing ${2:+--partition="$2"} --format='%i|%D|%k' |
    awk -F'|' -v now="$(date +%s)" '
        $3 ~ /^rlaunch1 saved=[0-9]+ step=[0-9]+ gpus=[0-9]+( |$)/ {
            split($3, word, /[ =]/)
            loss = (now - word[3]) * word[7]; if (loss < 0) loss = 0
            printf "%.3f %s %d %d\n", loss / $2, $1, $2, loss
        }' |
    sort -n |
    awk -v needed="$needed" '
        have < needed { have += $3; print $2, $3, $4 }
        END { if (have < needed) { print "only " have + 0 " nodes can be had" > "/dev/stderr"; exit 1 } }' |
    while read -r job nodes loss; do
        echo "job $job: $nodes nodes, loses $loss GPU-seconds"
        # USR1 is a notice: the run saves at a step that all its ranks agree on, and requeues itself.
        [ "$act" = print ] || scancel --signal=USR1 "$job"
    done
