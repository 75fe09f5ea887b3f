#!/bin/sh
# Runs the native front with a broker that is ready, where one may start: usage: through-front.sh FRONT ARGUMENTS
front=$1
shift
state=${RINGFENCE_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/ringfence}
if [ -d "$state" ] && [ -w "$state" ] && [ ! -S "$state/broker/socket" ]; then
  RINGFENCE_BROKER_IDLE=30 "$front" check command true >/dev/null 2>&1 </dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ -f "$state/broker/lock" ] && [ ! -S "$state/broker/socket" ] && sleep 0.25
  done
fi
exec "$front" "$@"
