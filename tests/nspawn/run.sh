#!/bin/bash
# Install the packages on machines that boot with systemd, and run operators' procedures:
#   tests/nspawn/run.sh DEBS CACHE [argument of pytest...]
# DEBS: folder with the packages. CACHE: folder for the machines' root file system, which mmdebstrap
# makes from this machine's apt sources. Needs root. Machines, bridge, mounts and temporary files
# are in namespaces of this run. They vanish when the last process of this run ends. The script
# removes the machines' control groups at its end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
debs=$(realpath "${1:?usage: $0 DEBS CACHE [argument of pytest...]}")
mkdir -p "${2:?usage: $0 DEBS CACHE [argument of pytest...]}"
cache=$(realpath "$2")
shift 2
[ "$(id -u)" = 0 ] || {
	echo "$0: needs root" >&2
	exit 1
}
groups=()
for g in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
	[ -e "$g/cgroup.procs" ] && groups+=("$g/bps-nspawn-$$")
done
cleanup() { # remove control groups of this run, and of earlier runs that were killed
	local g
	for g in /sys/fs/cgroup/bps-nspawn-* /sys/fs/cgroup/*/bps-nspawn-*; do
		if [ -d "$g" ] && { [ "${g##*-}" = $$ ] || ! kill -0 "${g##*-}" 2>/dev/null; }; then
			find "$g" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		fi
	done
}
trap cleanup EXIT
cleanup
mkdir -p "${groups[@]}" /run/systemd/nspawn

root=$("$here/root.sh" "$debs" "$cache")
export BPS_NSPAWN_ROOT=$root BPS_NSPAWN_DEBS=$debs BPS_NSPAWN_GROUPS="${groups[*]}"
# Each process dies with its parent. When the first process of a namespace ends, all other processes
# of the namespace end.
setpriv --pdeathsig KILL timeout --foreground --signal=INT --kill-after=30 \
	"${BPS_NSPAWN_LIMIT:-900}" setpriv --pdeathsig KILL \
	unshare --pid --fork --kill-child --mount-proc --net --mount --propagation private \
	"$here/inside.sh" /usr/bin/python3 -m pytest -p no:cacheprovider --durations=0 -v \
	"$here" "$@"
