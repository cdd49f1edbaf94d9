#!/bin/bash
# Make a root file system of this machine's release of Debian, with this machine's apt settings and
# sources:
#   mmdebstrap.sh TARGET [OPTION...] [SOURCE...]
# TARGET, OPTIONs (which begin with --) and SOURCEs are those of mmdebstrap(1). A SOURCE is used in
# addition to the machine's sources.
set -euo pipefail
target=${1:?usage: $0 TARGET [OPTION...] [SOURCE...]}
shift
options=()
while [ $# -gt 0 ] && [ "${1#--}" != "$1" ]; do
	options+=("$1")
	shift
done
# shellcheck source=/dev/null
. /etc/os-release
conf=$(mktemp)
trap 'rm -f "$conf"' EXIT
apt-config dump | grep '^Acquire::' >"$conf" || true
sources=()
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
	if [ -e "$f" ] && grep -q "$VERSION_CODENAME" "$f"; then
		sources+=("$f")
	fi
done
mmdebstrap --quiet --mode=root --aptopt="$conf" "${options[@]}" "$VERSION_CODENAME" "$target" \
	"${sources[@]}" "$@"
