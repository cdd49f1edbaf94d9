#!/bin/bash
# Run real daemons over libfabric's verbs provider. The daemons run on an emulated machine (the
# guest) with two NUMA nodes and a kernel that has a software RDMA device:
#   tests/qemu/run.sh BUILD CACHE [word in the names of tests]
# CACHE: folder for the guest's kernel. The guest sees this machine's files read-only, so it runs
# the same programs and libraries. The guest writes only to its own memory. Nothing is built or
# installed in the guest. Neither root nor /dev/kvm is needed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "${1:?usage: $0 BUILD CACHE [WORD]}")
mkdir -p "${2:?usage: $0 BUILD CACHE [WORD]}"
cache=$(realpath "$2")
only=${3-}
console=$cache/console.log
guest=$("$here/initrd.sh" "$cache")

settings="BPS_BUILD=$build ${only:+BPS_QEMU_ONLY=$only}"
# Each process dies with its parent.
setpriv --pdeathsig KILL timeout --foreground --kill-after=10 "${BPS_QEMU_LIMIT:-1200}" \
	setpriv --pdeathsig KILL \
	qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 \
	-object memory-backend-ram,id=m0,size=1536M -numa node,memdev=m0,cpus=0 \
	-object memory-backend-ram,id=m1,size=1536M -numa node,memdev=m1,cpus=1 \
	-nographic -no-reboot -nic none \
	-kernel "$guest/vmlinuz" -initrd "$guest/initrd.gz" \
	-append "console=ttyS0 quiet panic=1 tsc=unstable script=$here/guest.sh $settings" \
	-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
	-device virtio-9p-pci,fsdev=root,mount_tag=hostroot </dev/null 2>&1 |
	sed -u 's|\r||g' | tee "$console" | awk '/^@@ (passed|FAILED|skipped)/ {
		printf "%s %8.1f s  %s\n", $2, $3, $4; fflush() }' || true

# The emulator's exit status has no meaning, so count the results on the console.
counts=$(awk '/^@@ / && $2 != "end" { n[$2]++ } END {
	printf "%d passed, %d failed, %d skipped", n["passed"], n["FAILED"], n["skipped"]
	}' "$console")
if grep -q '^@@ end 0$' "$console" && grep -q '^@@ passed' "$console"; then
	echo "$counts"
	exit
fi
sed -n '/=== FAILURES\|=== ERRORS/,$p' "$console" | tail -200
if ! grep -q '^@@ end' "$console"; then
	echo "the guest did not reach its end; the last lines of its console:"
	tail -5 "$console"
fi
echo "$counts; $console has the whole console"
exit 1
