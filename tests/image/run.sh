#!/bin/bash
# Test the images that `make image` has made:
#   tests/image/run.sh IMAGES AGAIN [argument of pytest...]
# IMAGES: folder with the images. AGAIN: folder with a second build of them. Needs root. The
# processes, mounts and network addresses of the pods are in namespaces of this run. They vanish
# when the run ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
BPS_IMAGES=$(realpath "${1:?usage: $0 IMAGES AGAIN [argument of pytest...]}")
BPS_IMAGES_AGAIN=$(realpath "${2:?usage: $0 IMAGES AGAIN [argument of pytest...]}")
shift 2
export BPS_IMAGES BPS_IMAGES_AGAIN
[ "$(id -u)" = 0 ] || {
	echo "$0: needs root" >&2
	exit 1
}
exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc --net --mount \
	--propagation private sh -c 'ip link set lo up && exec "$@"' sh \
	/usr/bin/python3 -m pytest -q -p no:cacheprovider --durations=3 "$here" "$@"
