#!/bin/sh
# Builds the agent as one small static binary: with musl where it is installed, otherwise with the system's C library.
# usage: build.sh OUTPUT [extra compiler flags]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
flags="-std=gnu11 -O2 -Wall -Wextra -Wno-missing-field-initializers -fno-strict-aliasing -static"
if command -v musl-gcc >/dev/null 2>&1; then
  # musl does not bring the kernel's headers. They come last, so that they never replace a header of musl.
  multiarch=$(gcc -print-multiarch 2>/dev/null || true)
  compiler="musl-gcc -idirafter /usr/include -idirafter /usr/include/$multiarch"
else
  compiler=${CC:-cc}
fi
# shellcheck disable=SC2086
$compiler $flags -I"$here" "$@" -o "$out.tmp" "$here"/*.c "$here"/*/*.c
strip "$out.tmp" 2>/dev/null || true
mv "$out.tmp" "$out"
