#!/bin/sh
# sbpipe-role trainer|selector [FLAGS]: one role of the run in /runs/$SBPIPE_RUN, to be started as often as it takes.
#
# A new run is begun, one that was cut off is resumed, and one that is finished stays as it is: nothing is trained twice.
# Both roles get the same settings, as sbpipe wants it: /config.toml, and over it, where they are not empty,
#   SBPIPE_SYNC_INTERVAL   steps between two pushes of the weights
#   SBPIPE_PRECISION       precision of scoring
#   SBPIPE_SET             anything else, separated by blanks: "train.epochs=20 selection.keep=0.25"
# They meet at
#   SBPIPE_LINK            the trainer's address: by default a socket in the shared volume /link; over TCP with the keys in /keys
set -efu

role=$1
shift
run=/runs/${SBPIPE_RUN:?must name the run}
link=${SBPIPE_LINK:-ipc:///link/trainer}

if grep -qs '"status": "finished"' "$run/summary.json"; then
    echo "$run is finished: nothing to do. Another SBPIPE_RUN begins another run"
    exit 0
fi

for assignment in ${SBPIPE_SET:-}; do
    set -- --set "$assignment" "$@"
done
set -- /config.toml ${SBPIPE_SYNC_INTERVAL:+--sync-interval "$SBPIPE_SYNC_INTERVAL"} \
    ${SBPIPE_PRECISION:+--precision "$SBPIPE_PRECISION"} "$@"
case $link in
tcp://*) set -- "$@" --keys /keys ;;
esac

case $role in
trainer)
    if [ -e "$run/config.json" ]; then
        set -- "$@" --resume
    fi
    exec sbpipe trainer "$@" --run-dir "$run" --bind "$link"
    ;;
selector)
    case $link in
    # Its events: on a host of its own there is no run directory yet.
    tcp://*) mkdir -p -m 0700 "$run" ;;
    esac
    exec sbpipe selector "$@" --connect "$link" --set "selector.events='$run'"
    ;;
*)
    echo "sbpipe-role: $role is neither trainer nor selector" >&2
    exit 2
    ;;
esac
