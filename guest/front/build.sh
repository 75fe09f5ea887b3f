#!/bin/sh
# Builds the front, with what it shares with the agent.
# usage: build.sh OUTPUT [extra compiler flags]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
common=$here/../agent/common
out=$1
shift
exec sh "$here/../build-static.sh" "$out" "$here" -I"$here/../agent" "$@" "$common/common.c" "$common/message.c"
