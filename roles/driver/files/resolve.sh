# shellcheck shell=sh
# Prints what keeps packages from being installed, one "unreachable|missing|pending|candidate|says VALUE" a line; nothing when they can be.
# resolve.sh deb|rpm BRINGS NAME...
# BRINGS are packages that bring repositories, one word. One that is pending is not there yet: what is missing may come with it.
# Asks the package sources anew, with lists in a directory of its own: the host stays as it is.
family=$1 brings=$2
shift 2
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work" # apt downloads as a user of its own
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

ask_apt() {
  program=$1
  shift
  "$program" -q -o Dir::State::lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@"
}
deb() {
  mkdir -p "$work/lists/partial"
  ask_apt apt-get update >"$work/update" 2>&1
  ask_apt apt-get --simulate --no-install-recommends --allow-change-held-packages install "$@" >"$work/said" 2>&1 && return
  sed -n 's/^[WE]: \(.*Failed to fetch.*\)/unreachable \1/p; s/^E: \(The repository .*\)/unreachable \1/p' "$work/update"
  sed -n "s/^E: Unable to locate package \(.*\)/missing \1/p; s/^E: Package '\(.*\)' has no installation candidate/missing \1/p" "$work/said"
  sed -n '/^E: Unable to locate\|has no installation candidate\|find any package by/d; s/^E: /says /p; s/^ \(.* : Depends: .*\)/says \1/p' "$work/said"
  for name; do
    case $name in linux-*-[0-9]*.[0-9]*)
      of_kernels=$(printf %s "$name" | sed 's/-[0-9]*[.][0-9].*//')
      ask_apt apt-cache search --names-only "^$of_kernels-[0-9]+[.]" | sed -n 's/^\([^ ]*\) .*/candidate \1/p' | grep -v -e '-common' | sort -V | tail -n 6
      ;;
    esac
  done
}
rpm() {
  ask_dnf() { dnf -q --setopt=cachedir="$work/cache" --setopt=logdir="$work" --setopt=timeout=20 --setopt=retries=1 "$@"; }
  # It ends with 1 for the "no" too, and only then names the transaction.
  ask_dnf --assumeno install "$@" >"$work/said" 2>&1 && return
  grep -q '^Transaction Summary' "$work/said" && return
  sed -n 's/^\(Error: Failed to download.*\|.*Cannot download repomd.*\|.*Curl error.*\)/unreachable \1/p' "$work/said"
  sed -n 's/^No match for argument: \(.*\)/missing \1/p' "$work/said"
  sed -n '/Failed to download\|Curl error\|Unable to find a match/d; s/^Error: /says /p; s/^ *- /says /p' "$work/said"
  for name; do
    case $name in kernel-devel-* | kernel-64k-devel-*)
      ask_dnf repoquery --qf 'candidate %{name}-%{version}-%{release}.%{arch}\n' "${name%%-devel-*}-devel" 2>/dev/null | grep . | sort -V | tail -n 6
      ;;
    esac
  done
}
pending() {
  for name in $brings; do
    dpkg-query -s "$name" >/dev/null 2>&1 || command rpm -q "$name" >/dev/null 2>&1 || echo "pending $name"
  done
}
{ "$family" "$@"; pending; } | sort -u
