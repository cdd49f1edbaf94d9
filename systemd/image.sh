#!/bin/bash
# Make an image for containers from our packages, on Debian 12, without a registry of images:
#   image.sh DEBS OUT NAME VERSION COMMIT PACKAGE...
# DEBS: folder with our packages (make deb). OUT: folder for the image, OUT/NAME-image-VERSION.tar.
# PACKAGE: a package of ours to install, with what it depends on. SOURCE_DATE_EPOCH is the time of
# all files. Needs root. The image has the essential packages of Debian, and neither apt nor manual
# pages. Two runs with the same packages write the same bytes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
debs=$(realpath "${1:?usage: $0 DEBS OUT NAME VERSION COMMIT PACKAGE...}")
out=$2 name=$3 version=$4 commit=$5
shift 5
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:?set it to the time of the commit}
[ "$(id -u)" = 0 ] || {
	echo "$0: needs root, to make a root file system" >&2
	exit 1
}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt takes the packages from a repository in a folder.
mkdir "$work/debs"
cp "$debs"/*.deb "$work/debs"
(cd "$work/debs" && dpkg-scanpackages --multiversion . 2>/dev/null >Packages)
# The daemons run without systemd. Two small programs make the group and the folders that the
# packages want.
packages=$(printf ",%s" usr-is-merged systemd-standalone-sysusers systemd-standalone-tmpfiles "$@")

umask 022
echo "making the root file system of the image $name" >&2
# shellcheck disable=SC2016 # the shell of the hook expands $1
"$here/mmdebstrap.sh" "$work/root.tar" --variant=essential --format=tar \
	--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="${packages#,}" \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--customize-hook='cd "$1" && rm -rf etc/apt/sources.list* etc/*/*.d/99mmdebstrap \
		etc/hostname etc/resolv.conf etc/machine-id etc/*- var/lib/apt/lists/* \
		var/cache/* var/log/* var/lib/dpkg/*-old' \
	"deb [trusted=yes] copy:$work/debs ./" >"$out/$name.log" 2>&1 || {
	tail -n 20 "$out/$name.log" >&2
	echo "$0: mmdebstrap failed; $out/$name.log has all of its output" >&2
	exit 1
}
"$here/image.py" "$work/root.tar" "$out/$name-image-$version.tar" "$name" "$version" "$commit" \
	"$(dpkg --print-architecture)"
