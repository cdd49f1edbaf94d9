#!/bin/bash
# Make the root file system of the machines, unless it exists, and print its path:
#   root.sh DEBS CACHE
# The file system is a minimal Debian with systemd. It has the dependencies of the packages in DEBS,
# but not these packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
debs=$1 cache=$2
# shellcheck source=/dev/null
. /etc/os-release

packages=systemd,systemd-sysv,dbus,procps,iproute2,libnss-systemd
for deb in "$debs"/*.deb; do
	# Add the names of the dependencies, without versions. Of alternatives, add the first.
	# Leave out our own packages and Python.
	while read -r name; do
		case $name in bps* | libbps* | python3* | "") ;; *) packages+=,$name ;; esac
	done < <(dpkg-deb -f "$deb" Depends | tr ',' '\n' |
		sed 's/|.*//; s/(.*//; s/:any//; s/ //g')
done
packages=$(tr ',' '\n' <<<"$packages" | sort -u | paste -sd,)
root=$cache/root-$(sha256sum <<<"$VERSION_CODENAME $packages" | cut -c1-12)
if [ -d "$root" ]; then
	echo "$root"
	exit
fi

work=$(mktemp -d "$cache/making-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "making the machines' root file system (once)" >&2
"$here/../../systemd/mmdebstrap.sh" "$work/root" --variant=apt --include="$packages" >&2
rm -f "$work/root/etc/hostname" # systemd-nspawn sets the name of each machine
mv "$work/root" "$root"
echo "$root"
