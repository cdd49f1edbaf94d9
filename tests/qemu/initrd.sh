#!/bin/bash
# Make the guest's kernel and its first file system, unless they exist, and print their folder:
#   initrd.sh CACHE
# The script downloads Debian's package of the kernel and extracts it without installing it. The
# first file system contains the modules that the guest needs, and a list of them in the order of
# loading. Remove CACHE to get a newer kernel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$1
made=$cache/guest-$(cat "$here"/{init,initrd.sh} | sha256sum | cut -c1-12)
if [ -d "$made" ]; then
	echo "$made"
	exit
fi

package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: //p')
version=${package#linux-image-}
work=$(mktemp -d "$cache/making-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "getting the guest's kernel, $package (once)" >&2
mkdir "$work/made" "$work/deb"
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package")
dpkg -x "$work"/*.deb "$work/deb"
depmod -b "$work/deb" "$version"
mkdir -p "$work/initrd"/{bin,dev,mods,proc,root,sys}
# modprobe shows only hard dependencies. So this list also names the modules that are soft
# dependencies, before the modules that need them.
for m in crc32_generic crc32c_generic virtio_pci virtio_pci_legacy_dev 9p 9pnet_virtio dummy \
	rdma_rxe ib_uverbs rdma_ucm; do
	modprobe -d "$work/deb" -S "$version" --show-depends "$m"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
	while read -r path; do
		cp "$path" "$work/initrd/mods"
		basename "$path"
	done >"$work/initrd/mods/order"
cp /bin/busybox "$work/initrd/bin"
install -m 755 "$here/init" "$work/initrd/init"
(cd "$work/initrd" && find . | cpio --quiet -o -H newc) | gzip >"$work/made/initrd.gz"
mv "$work/deb/boot/vmlinuz-$version" "$work/made/vmlinuz"
mv "$work/made" "$made"
echo "$made"
