#!/bin/sh
# Train the example on a private cluster of real daemons and print the accuracy at the end:
#   demo.sh BUILD_DIR
# bpsrun starts a scheduler, 2 servers, 2 agents and 4 trainers on separate loopback addresses, and
# shows the cluster. At the end, also after a failure, bpsrun stops all processes. The demo fails if
# the accuracy is below 90 %. With right sums it is 95 %.
set -eu
build=${1:?usage: $0 BUILD_DIR}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

echo "training bps-digits: 4 trainers on 2 agents, sums on 2 servers"
{
	rc=0
	"$build/bpsrun" -n 4 --agents 2 --servers 2 --status --timeout 120s -- \
		"$build/bps-digits" --epochs 100 2>&1 || rc=$?
	echo "$rc" >"$dir/rc"
} | tee "$dir/out"
rc=$(cat "$dir/rc")
if [ "$rc" != 0 ]; then
	echo "the demo failed: bpsrun ended with $rc" >&2
	exit "$rc"
fi
accuracy=$(sed -n 's/^\[0\] .*\(test accuracy .*\)$/\1/p' "$dir/out")
if [ -z "$accuracy" ]; then
	echo "the demo failed: the trainers printed no accuracy" >&2
	exit 1
fi
percent=${accuracy#test accuracy }
if [ "${percent%%.*}" -lt 90 ]; then
	echo "the demo failed: $accuracy is below 90 %" >&2
	exit 1
fi
echo "$accuracy"
