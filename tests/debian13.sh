#!/bin/bash
# Build and test on Debian 13, which has a newer compiler, libraries and Python than Debian 12:
#   tests/debian13.sh CACHE [COMMAND]
# CACHE: folder for a root file system, which mmdebstrap makes from this machine's mirror of Debian.
# The script clones the current commit there, and runs a shell command in the clone. By default, it
# runs `make test`, and builds everything so that each warning is an error. The packages that make
# installs stay in the root file system. Needs root. All processes end with the script.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:?usage: $0 CACHE [COMMAND]}"
cache=$(realpath "$1")
command=${2:-make test && make -j"$(nproc)" WERROR=1}
root=$cache/trixie
if [ ! -d "$root" ]; then
	# shellcheck disable=SC2016 # apt-get expands the name of the field
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
		'Origin: Debian' 'Label: Debian' | head -n 1)
	work=$(mktemp -d "$cache/making-XXXXXX")
	trap 'rm -rf "$work"' EXIT
	apt-config dump | grep '^Acquire::' >"$work/apt.conf" || true
	key=/usr/share/keyrings/debian-archive-keyring.gpg
	mmdebstrap --quiet --variant=apt --mode=root --aptopt="$work/apt.conf" \
		--include=git,make trixie "$work/root" "deb [signed-by=$key] $mirror trixie main"
	mv "$work/root" "$root"
fi
rm -rf "$root/src"
git clone --quiet --no-hardlinks "$source" "$root/src"
cp /etc/resolv.conf "$root/etc/resolv.conf"

# The tests make mounts, so the root file system has to be a mount itself.
# shellcheck disable=SC2016 # the inner shell expands these
exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount \
	--propagation private sh -ec '
	root=$1
	mount --bind "$root" "$root"
	mount --rbind /dev "$root/dev"
	mount --rbind /sys "$root/sys"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/tmp"
	mount -t tmpfs tmpfs "$root/run"
	exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
		sh -c "cd /src && $2"' sh "$root" "$command"
