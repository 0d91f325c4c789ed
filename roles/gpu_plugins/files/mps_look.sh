# shellcheck shell=sh
# Prints the paths of the units of MPS control daemons, and of the records of those that the command with this SHA-256 has set up. Reads only.
# mps_look.sh SHA256 STATE DIRECTORY...
sum=$1 state=$2
shift 2
for directory; do
  ls -d "$directory"/kube-accel-mps@*.service
done 2>/dev/null
grep -ls "^$sum " "$state"/*.command
exit 0
