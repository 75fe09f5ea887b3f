#!/bin/sh
# Builds the agent.
# usage: build.sh OUTPUT [extra compiler flags]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
exec sh "$here/../build-static.sh" "$out" "$here" "$@"
