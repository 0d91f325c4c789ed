#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh OUT [ARCH]: libcuda.so.1, libnvidia-ml.so.1 and the hook ldcache in OUT. CC names another compiler, NATIVE_CFLAGS adds flags (a sanitizer's).
# The same sources and compiler give the same bytes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
machine=$(uname -m)
arch=${2:-$machine}
[ "$arch" = "$machine" ] && cross= || cross=$arch-linux-gnu-
cc=${CC:-${cross}gcc}
command -v "${cc%% *}" >/dev/null || { echo "build.sh: $cc is not installed; it compiles for $arch" >&2; exit 1; }

# No start files: nothing of ours runs when the library is loaded. No stack protector, no fortify: their symbols are newer than the oldest libc in use.
flags="-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -fno-stack-protector -U_FORTIFY_SOURCE -fno-tree-loop-distribute-patterns"
[ "$arch" != aarch64 ] || flags="$flags -mno-outline-atomics" # the others come with a constructor
link="-shared -nostartfiles -s -Wl,-Bsymbolic,-z,now,-z,nodelete,-z,relro,-z,defs,-z,noexecstack,--build-id=none,--hash-style=both,--no-as-needed -l:libdl.so.2"

library() { # NAME NAMES NO_DRIVER NOT_IN_DRIVER SOURCE...
    name=$1 names=$2 no_driver=$3 not_in_driver=$4
    shift 4
    work=$scratch/$names
    mkdir "$work"
    (cd "$here" && python3 generate.py "names/$names.txt" "$arch" "$work" "$@")
    # shellcheck disable=SC2086
    (cd "$here" && $cc $flags ${NATIVE_CFLAGS:-} -I"$work" -I. -DSHIM_LIBRARY="\"$name\"" -DSHIM_NO_DRIVER="$no_driver" \
        -DSHIM_NOT_IN_DRIVER="$not_in_driver" "$@" process.c resolve.c policy.c state.c account.c "$work/stubs.S" -Wl,-soname,"$name" $link -o "$out/$name.new")
    mv "$out/$name.new" "$out/$name"
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
library libcuda.so.1 cuda 100 801 procaddress.c table.c charge.c device.c memory.c pools.c vmm.c arrays.c budget.c batch.c settle.c helper.c meter.c launch.c
library libnvidia-ml.so.1 nvml 12 13 nvml.c

# Static: it runs on any host, and a container's root file system gives it nothing to load. It is tried with sanitizers apart, which are never static.
(cd "$here" && $cc -std=gnu11 -Os -Wall -Wextra -Werror -ffile-prefix-map="$here"=. -static -s -Wl,--build-id=none ldcache.c -o "$out/ldcache.new")
mv "$out/ldcache.new" "$out/ldcache"
