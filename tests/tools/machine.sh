#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# machine.sh COMMAND...: run a command, as root, on a machine that ends with it: this one's files, with processes, network, devices
# and changes of its own. What it writes is in memory and lost. MACHINE names its cgroup.
set -eu
work=$(mktemp -d)
export MACHINE="machine-$$"
cgroups=
for directory in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ ! -e "$directory/cgroup.procs" ] || cgroups="$cgroups $directory/$MACHINE"
done
mkdir -p $cgroups
trap 'find $cgroups -depth -type d -exec rmdir {} +; rmdir "$work"' EXIT
unshare --mount --net --pid --fork --mount-proc --kill-child --propagation private sh -euc '
  work=$1 here=$PWD; shift
  mount -t tmpfs -o mode=755 machine "$work"
  mkdir "$work/upper" "$work/work" "$work/root"
  mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
  mount --rbind /proc "$work/root/proc"
  mount --rbind /sys "$work/root/sys"
  mount -t tmpfs -o mode=755 devices "$work/root/dev"
  cp -ax /dev/. "$work/root/dev"
  for directory in pts shm; do mount --bind "/dev/$directory" "$work/root/dev/$directory"; done
  # Not on the overlay: they hold overlays themselves. And no leftovers of this machine.
  for directory in run var/lib/containerd var/lib/kubelet; do
    mkdir -p "$work/$directory" "$work/root/$directory"
    mount --bind "$work/$directory" "$work/root/$directory"
  done
  cd "$work/root"
  pivot_root . mnt
  umount -l /mnt
  mount --make-rshared /
  ip link set lo up
  # An address that is none of the loopback network: an API server passes requests on to no other.
  ip address add 192.0.2.2/24 dev lo
  cd "$here"
  # A shell stays as process 1: it reaps what is left to it.
  "$@"
  ' machine "$work" "$@"
