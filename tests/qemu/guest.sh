#!/bin/sh
# The only program of the guest: makes the RDMA device, runs the tests, turns the machine off. The
# kernel's command line has the build folder (BPS_BUILD), and words that choose tests
# (BPS_QEMU_ONLY).
cd "$(dirname "$0")/../.." || exit
exec >/dev/ttyS0 2>&1
read -r words </proc/cmdline
for word in $words; do
	case $word in BPS_*) export "${word?}" ;; esac
done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt TMPDIR=/mnt PYTHONDONTWRITEBYTECODE=1
export BPS_QEMU_CONSOLE=/dev/ttyS0 BPS_TEST_DEADLINE_S=180
# shellcheck disable=SC3045 # dash has it
ulimit -l unlimited
ip link set lo up
ip link set dummy0 mtu 4200 up # room for packets of 4 KiB
for host in 1 10 11 100 101; do
	ip address add 10.9.9.$host/24 dev dummy0
done
rdma link add rxe0 type rxe netdev dummy0
python3 -m pytest -p no:cacheprovider -q --color=no --basetemp=/mnt/pytest \
	-k "${BPS_QEMU_ONLY:-test}" tests/qemu
echo "@@ end $?"
echo o >/proc/sysrq-trigger
while :; do :; done # no program can be loaded after this, so wait without one
