#!/bin/sh
# Builds ringfence-channel as one static binary. Needs mbedTLS with its static libraries (Debian: libmbedtls-dev).
# usage: build.sh OUTPUT [extra compiler flags]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
${CC:-gcc} -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wno-missing-field-initializers -static -I"$here" "$@" \
  -o "$out.tmp" "$here"/*.c -lmbedtls -lmbedx509 -lmbedcrypto
strip "$out.tmp" 2>/dev/null || true
mv "$out.tmp" "$out"
