#!/bin/sh
# Around the MPS control daemon of one GPU, for the unit kube-accel-mps@<uuid>.
# kube-accel-mps prepare|hold|run|defaults|restore|quit UUID; the unit sets the CUDA_MPS_ directories.
set -eu
action=$1 uuid=$2
: "${CUDA_MPS_PIPE_DIRECTORY:?}" "${CUDA_MPS_LOG_DIRECTORY:?}" "${KUBE_ACCEL_MPS_STATE:?}"
before=$KUBE_ACCEL_MPS_STATE/$uuid.compute-mode
# What containers have as pipe directory.
client=${CUDA_MPS_PIPE_DIRECTORY%/*}/client

compute_mode() { nvidia-smi -i "$uuid" --query-gpu=compute_mode --format=csv,noheader; }

# Containers may use what has this label, where the kernel has SELinux. The node may be permissive: a failure is only said.
label() {
  [ -e "${KUBE_ACCEL_MPS_SYSFS:-/sys}/fs/selinux/enforce" ] || return 0
  chcon "$@" || echo "kube-accel-mps: not labelled for containers: $*" >&2
}
context=system_u:object_r:container_file_t:s0

injection=${KUBE_ACCEL_MPS_SHM:-}/cuda_injection_path_shm
held=$KUBE_ACCEL_MPS_STATE/$uuid.held

# CUDA loads the library that this file names: in neighbours, and in the server, which is root of this host (seen with drivers
# 535 and 555). So it is ours, empty, and nobody's to remove where the kernel has immutable files on a tmpfs (6.6 and newer).
guard() {
  [ "$(stat -f -c %T "${KUBE_ACCEL_MPS_SHM:-/}")" = tmpfs ] || return 0
  if [ -L "$injection" ] || [ ! -f "$injection" ] || [ -s "$injection" ]; then
    # A container that writes here has no end, and what it puts in place of the file is never opened: it may be a FIFO.
    timeout 20 rm -rf "$injection" || true
    # Made only where nothing has the name, with a mode that all may read.
    new=$KUBE_ACCEL_MPS_SHM/.kube-accel.$(od -An -N8 -tx1 /dev/urandom | tr -d ' ')
    (set -C && : >"$new")
    mv -fT "$new" "$injection" || rm -f "$new"
  fi
  : >"$held"
  fails=0
  unshare --mount sh "$0" hold "$uuid" || fails=$?
  rm -f "$held"
  if [ "$fails" -ne 0 ]; then
    echo "kube-accel-mps: a container writes $injection, by which it would be root here: end the pods on GPU $uuid" >&2
    exit 1
  fi
}

case $action in
prepare)
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY" "$KUBE_ACCEL_MPS_STATE"
  # Servers are not always root: they open the pipes.
  chmod 0755 "$CUDA_MPS_PIPE_DIRECTORY"
  if [ -n "${KUBE_ACCEL_MPS_SHM:-}" ]; then
    mkdir -p "$KUBE_ACCEL_MPS_SHM"
    options=nosuid,nodev,noexec,size=$KUBE_ACCEL_MPS_SHM_SIZE,nr_inodes=65536,mode=1777
    # Containers fill it: nothing else of the host may be on it. It stays, for containers that outlive the daemon have it.
    if mountpoint -q "$KUBE_ACCEL_MPS_SHM"; then
      mount -o "remount,$options" "$KUBE_ACCEL_MPS_SHM"
    else
      mount -t tmpfs -o "$options" kube-accel-mps "$KUBE_ACCEL_MPS_SHM"
    fi
    # Not what is in it: files of a container are its own.
    label "$context" "$KUBE_ACCEL_MPS_SHM"
    guard
  fi
  # Kept over a crash: what there was before us, not what the last start has set.
  if [ ! -s "$before" ]; then
    # They would start no process more. The unit tries again until they have ended.
    direct=$(nvidia-smi -i "$uuid" --query-compute-apps=pid --format=csv,noheader | grep -x '[0-9]*') || direct=
    if [ -n "$direct" ]; then
      echo "kube-accel-mps: processes use GPU $uuid without MPS: $(echo "$direct" | xargs); end their pods" >&2
      exit 1
    fi
    compute_mode >"$before.new"
    mv "$before.new" "$before"
  fi
  # Processes that come by MPS share the GPU, and no other gets in beside them.
  nvidia-smi -i "$uuid" -c EXCLUSIVE_PROCESS
  ;;
hold)
  # In a mount namespace of its own: chattr follows links, and what is mounted stays the file that was looked at.
  mount --bind "$injection" "$held"
  if [ ! -f "$held" ] || [ -s "$held" ] || [ "$(stat -c %d "$held")" != "$(stat -c %d "$KUBE_ACCEL_MPS_SHM")" ]; then
    exit 1
  fi
  chattr +i "$held" || echo "kube-accel-mps: kernel older than 6.6, or no chattr: containers of before can replace $injection" >&2
  if [ -L "$injection" ] || [ ! "$injection" -ef "$held" ] || [ -s "$held" ]; then
    chattr -i "$held" || true
    exit 1
  fi
  ;;
run)
  # Without it a server is of one user, and pods of another wait until its pods have ended. -h of driver 555 does not tell of it.
  if [ "${KUBE_ACCEL_MPS_MULTIUSER:-}" = true ] && grep -q -e -multiuser-server "$(command -v nvidia-cuda-mps-control)"; then
    exec nvidia-cuda-mps-control -f -multiuser-server
  fi
  exec nvidia-cuda-mps-control -f
  ;;
defaults)
  # The role compares it with the command as it is: a run may have been killed before it reloaded the unit.
  sum=$(sha256sum <"$0")
  tries=50
  until echo get_default_active_thread_percentage | nvidia-cuda-mps-control >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || exit 1
    sleep 0.2
  done
  guard
  # The socket for clients alone: control_privileged takes "quit", and rubbish in the pipe "log" ends the daemon.
  mkdir -p "$client"
  chmod 0755 "$client"
  ln -f "$CUDA_MPS_PIPE_DIRECTORY/control" "$client/control"
  label -R "$context" "$client"
  # A client's own percentage can only be lower.
  echo set_default_active_thread_percentage 100 | nvidia-cuda-mps-control
  echo "$sum" >"$KUBE_ACCEL_MPS_STATE/$uuid.command"
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
