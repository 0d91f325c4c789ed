#!/bin/bash
# Unpacks the containerd and Docker of Debian's releases into DIRECTORY, for the tests that ask real ones: containerd 1.6,
# 1.7 and 2, and the Dockers that can check a file. Nothing is installed, and the host's package lists stay as they are.
# Tests say so when there is none.
set -eu
directory=$1
command -v apt-get >/dev/null || exit 0
site=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | sed -n 's/ bookworm$\| trixie$\| sid$//p' | head -n 1)
for release in bookworm:containerd trixie:containerd,docker.io sid:containerd,docker.io; do
  made=$directory/${release%:*}
  [ -n "$site" ] && [ ! -d "$made" ] || continue
  echo "setup: unpacking the container runtimes of Debian's ${release%:*} for the tests that ask real ones"
  work=$(mktemp -d)
  mkdir -p "$work/lists/partial" "$work/root"
  echo "deb $site ${release%:*} main" >"$work/sources.list"
  # As root apt would have another user write here, who may not, and warn of it.
  ask() {
    apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
      -o Dir::State::lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
  }
  packages=${release#*:}
  # shellcheck disable=SC2086 # one word for each package
  if ask update && (cd "$work" && ask download ${packages//,/ }); then
    for package in "$work"/*.deb; do
      dpkg --fsys-tarfile "$package" | tar -x -C "$work/root" --strip-components=3 --wildcards './usr/*bin/containerd' './usr/*bin/dockerd' 2>/dev/null || true
    done
    mkdir -p "$directory"
    mv "$work/root" "$made"
  else
    echo "setup: none to be had; the tests that ask a real one will be skipped and say so"
  fi
  rm -rf "$work"
done
