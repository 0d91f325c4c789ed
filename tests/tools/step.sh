#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# step.sh NAME COMMAND [WORD...]: runs a step of a target beside others. It says when the step starts and how long it took. What the step prints
# is in .cache/steps/NAME.log, and is shown when it fails.
set -uo pipefail
name=$1 log=.cache/steps/$1.log
shift
mkdir -p "${log%/*}"
printf '== %s: started; it writes %s\n' "$name" "$log"
began=$SECONDS
"$@" >"$log" 2>&1 </dev/null
code=$?
if [ $code != 0 ]; then
  printf '== %s: FAILED with %d after %d s; all it said is above, and in %s\n' "$name" "$code" $((SECONDS - began)) "$log" >>"$log"
  cat "$log" >&2
  exit $code
fi
printf '== %s: done in %d s\n' "$name" $((SECONDS - began))
