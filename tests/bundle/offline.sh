#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# offline.sh ARCHIVE PYTHON: installs the bundle and runs its playbooks on a simulated cluster, where machine.sh has us: no network.
# For the controller the collection's sources are not there either: all but the daemon's, which the simulated hosts use.
set -eu
work=$(mktemp -d)
ip -brief link
printf '{control_plane: control, nodes: [{name: gpu-a, profile: t4}]}' >"$work/spec.yml"
python -m sim.cluster up --root "$work/cluster" --spec "$work/spec.yml" >"$work/log" 2>&1 &
cluster=$!
trap 'kill $cluster; wait $cluster || true' EXIT
until [ -e "$work/cluster/ready" ]; do
  kill -0 $cluster || { cat "$work/log"; exit 1; }
  sleep 0.2
done
python -m sim.inventory "$work/cluster"
tar -C "$work" -xf "$1"
unshare --mount sh -euc '
  for directory in plugins playbooks meta roles/driver roles/container_runtime roles/scheduler roles/monitoring roles/gpu_plugins/*/; do
    [ "$directory" = roles/gpu_plugins/files/ ] || mount -t tmpfs none "$directory"
  done
  work=$1 python=$2
  cd "$work"
  mkdir home
  controller() { env -i HOME="$work/home" PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 ANSIBLE_PIPELINING=1 "$@"; }
  controller PYTHON="$python" accel-kubernetes-*/install.sh "$work/controller"
  for time in first second; do
    echo "the $time run"
    controller "$work/controller/bin/ansible-playbook" -i "$work/cluster/inventory.yml" accel.kubernetes.site -e scheduler_layout=none
  done
  ' sh "$work" "$2"
