#!/bin/sh
# Builds a program as one small static binary: with musl where it is installed, otherwise with the system's C library.
# usage: build-static.sh OUTPUT DIRECTORY [extra compiler flags and sources]
set -eu
out=$1
from=$2
shift 2
flags="-std=gnu11 -O2 -Wall -Wextra -Wno-missing-field-initializers -fno-strict-aliasing -static"
if command -v musl-gcc >/dev/null 2>&1; then
  # musl does not bring the kernel's headers. They come last, so that they never replace a header of musl.
  multiarch=$(gcc -print-multiarch 2>/dev/null || true)
  compiler="musl-gcc -idirafter /usr/include -idirafter /usr/include/$multiarch"
else
  compiler=${CC:-cc}
fi
# shellcheck disable=SC2086,SC2046
$compiler $flags -I"$from" "$@" -o "$out.tmp" $(find "$from" -name '*.c' | sort)
strip "$out.tmp" 2>/dev/null || true
mv "$out.tmp" "$out"
