#!/bin/sh
# Install the missing Debian packages of some purposes:
#   install-deps.sh build|test|providers|frontends|wheel|lint|fuzz|bench|deb|nspawn|qemu|
#       debian13|image|image-test...
# The script needs root or sudo. Without them, it prints the packages to install and fails. On
# systems other than Debian it prints the packages' Debian names and succeeds. The build then shows
# what is missing.
set -eu

build="gcc make pkg-config libfabric-dev libuv1-dev libevent-dev libjansson-dev libssl-dev
libinih-dev libnuma-dev libc6-dev"
test="$build patch libcmocka-dev openssl python3 python3-pytest python3-pytest-xdist python3-numpy
python3-jsonschema python3-yaml iproute2 mount nftables procps prometheus g++"
providers="$test python3-pip"
frontends="$build binutils patch python3-venv python3-pip"
wheel="$frontends python3-pytest mmdebstrap"
fuzz="$build clang"
bench="$test libgloo-dev openmpi-bin libopenmpi-dev"
lint="$test clang clang-format clang-tidy cppcheck shellcheck mandoc systemd python3-venv
python3-pip"
deb="$test debhelper dh-python dpkg-dev lintian xz-utils"
nspawn="$deb mmdebstrap systemd-container"
debian13="mmdebstrap git make"
image="$deb mmdebstrap git"
image_test="$image skopeo umoci"
qemu="$test qemu-system-x86 busybox-static cpio kmod rdma-core ibverbs-providers"

want=
for purpose in "${@:-none}"; do
	case $purpose in
	build) want="$want $build" ;;
	test) want="$want $test" ;;
	providers) want="$want $providers" ;;
	frontends) want="$want $frontends" ;;
	lint) want="$want $lint" ;;
	wheel) want="$want $wheel" ;;
	fuzz) want="$want $fuzz" ;;
	bench) want="$want $bench" ;;
	deb) want="$want $deb" ;;
	nspawn) want="$want $nspawn" ;;
	qemu) want="$want $qemu" ;;
	debian13) want="$want $debian13" ;;
	image) want="$want $image" ;;
	image-test) want="$want $image_test" ;;
	*)
		sed -n '3s/^#   /usage: /p; 4s/^#/      /p' "$0" >&2
		exit 2
		;;
	esac
done

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
	echo "not a Debian system: install the packages that Debian calls" "$want" >&2
	exit 0
fi

missing=
for p in $(echo "$want" | tr -s ' ' '\n' | sort -u); do
	case $(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true) in
	"install ok installed") ;;
	*) missing="$missing $p" ;;
	esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
	as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
	as_root="sudo -n"
else
	echo "these Debian packages are missing, and installing them needs root or sudo:" >&2
	echo "    apt-get install --no-install-recommends$missing" >&2
	exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086 # a list of package names
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
# The tests use only promtool of this package. Its service would listen at port 9090.
case "$missing " in
*" prometheus "*)
	[ ! -d /run/systemd/system ] || $as_root systemctl disable -q --now prometheus.service
	;;
esac
