#!/bin/sh
# Started by run.sh as the first process in new namespaces. It sets up a network with a bridge, and
# writes nothing into the host's folders.
set -eu
mount -t tmpfs tmpfs /run/systemd/nspawn
ip link set lo up
ip link add bps0 type bridge
ip link set bps0 up
exec "$@"
