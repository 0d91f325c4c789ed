#!/bin/sh
# Around the MPS control daemon of one GPU, for the unit kube-accel-mps@<uuid>.
# kube-accel-mps prepare|run|defaults|restore|quit UUID; the unit sets the CUDA_MPS_ directories.
set -eu
action=$1 uuid=$2
: "${CUDA_MPS_PIPE_DIRECTORY:?}" "${CUDA_MPS_LOG_DIRECTORY:?}" "${KUBE_ACCEL_MPS_STATE:?}"
before=$KUBE_ACCEL_MPS_STATE/$uuid.compute-mode

compute_mode() { nvidia-smi -i "$uuid" --query-gpu=compute_mode --format=csv,noheader; }

# Containers may use what has this label, where the kernel has SELinux. The node may be permissive: a failure is only said.
label() {
  [ -e "${KUBE_ACCEL_MPS_SYSFS:-/sys}/fs/selinux/enforce" ] || return 0
  chcon "$@" || echo "kube-accel-mps: not labelled for containers: $*" >&2
}
context=system_u:object_r:container_file_t:s0

case $action in
prepare)
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY" "$KUBE_ACCEL_MPS_STATE"
  # Clients are not root: they open the pipes, and have shm as their /dev/shm.
  chmod 0755 "$CUDA_MPS_PIPE_DIRECTORY"
  label -R "$context" "$CUDA_MPS_PIPE_DIRECTORY"
  if [ -n "${KUBE_ACCEL_MPS_SHM:-}" ]; then
    mkdir -p "$KUBE_ACCEL_MPS_SHM"
    options=size=$KUBE_ACCEL_MPS_SHM_SIZE,nr_inodes=65536,mode=1777
    # Containers fill it: nothing else of the host may be on it. It stays, for containers that outlive the daemon have it.
    if mountpoint -q "$KUBE_ACCEL_MPS_SHM"; then
      mount -o "remount,$options" "$KUBE_ACCEL_MPS_SHM"
    else
      mount -t tmpfs -o "nosuid,nodev,noexec,$options" kube-accel-mps "$KUBE_ACCEL_MPS_SHM"
    fi
    # Not what is in it: files of a container are its own.
    label "$context" "$KUBE_ACCEL_MPS_SHM"
  fi
  # Kept over a crash: what there was before us, not what the last start has set.
  if [ ! -s "$before" ]; then
    compute_mode >"$before.new"
    mv "$before.new" "$before"
  fi
  # Processes that come by MPS share the GPU, and no other gets in beside them.
  nvidia-smi -i "$uuid" -c EXCLUSIVE_PROCESS
  ;;
run)
  # Without it a server is of one user, and pods of another wait until its pods have ended.
  if [ "${KUBE_ACCEL_MPS_MULTIUSER:-}" = true ] && nvidia-cuda-mps-control -h 2>&1 | grep -q -e -multiuser-server; then
    exec nvidia-cuda-mps-control -f -multiuser-server
  fi
  exec nvidia-cuda-mps-control -f
  ;;
defaults)
  tries=50
  until echo get_default_active_thread_percentage | nvidia-cuda-mps-control >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || exit 1
    sleep 0.2
  done
  # What the daemon has made since.
  label -R "$context" "$CUDA_MPS_PIPE_DIRECTORY"
  # A client's own percentage can only be lower.
  echo set_default_active_thread_percentage 100 | nvidia-cuda-mps-control
  ;;
quit)
  echo quit | nvidia-cuda-mps-control
  ;;
restore)
  [ -s "$before" ] || exit 0
  case $(cat "$before") in
  *Prohibited*) mode=PROHIBITED ;;
  *Exclusive*) mode=EXCLUSIVE_PROCESS ;;
  *) mode=DEFAULT ;;
  esac
  nvidia-smi -i "$uuid" -c "$mode"
  rm -f "$before"
  ;;
*)
  echo "kube-accel-mps: unknown action $action" >&2
  exit 2
  ;;
esac
