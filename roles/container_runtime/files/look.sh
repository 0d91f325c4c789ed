# shellcheck shell=sh
# Prints which of these paths exist, and what kubelet's files say of its runtime, as lines "found PATH" and "kubelet TEXT". Reads only.
# look.sh PATTERN KUBELET_FILE... -- PATH...
pattern=$1
shift
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
  grep -hosE -e "$pattern" "$1" | sed 's/^/kubelet /'
  shift
done
shift
ls -d "$@" 2>/dev/null | sed 's/^/found /'
