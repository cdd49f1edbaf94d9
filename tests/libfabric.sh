#!/bin/sh
# Put a current libfabric into a folder: tests/libfabric.sh FOLDER
# Debian 12 has libfabric 1.17, whose provider tcp differs much from the provider of later versions.
# The wheel of MPICH contains a build of libfabric that needs nothing but glibc. This script
# downloads the wheel with pip and unpacks the build, but does not install the wheel. With
# LD_LIBRARY_PATH=FOLDER, programs load this build.
set -eu

wheel=mpich==5.0.2 # has libfabric 2.5.1
python=${PYTHON:-python3}
to=${1:?"usage: $0 FOLDER"}

if [ "$(cat "$to/wheel" 2>/dev/null)" != "$wheel" ]; then
	rm -rf "$to"
	mkdir -p "$to/unpacked"
	"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
		-d "$to" "$wheel"
	"$python" -m zipfile -e "$to"/*.whl "$to/unpacked"
	find "$to/unpacked" -name libfabric.so.1 -exec cp {} "$to" \;
	rm -rf "$to/unpacked" "$to"/*.whl
	echo "$wheel" >"$to/wheel"
fi
"$python" - "$to/libfabric.so.1" <<'EOF'
import ctypes, sys
v = ctypes.CDLL(sys.argv[1]).fi_version()
print(f"libfabric {v >> 16}.{v & 0xFFFF} in {sys.argv[1]}")
EOF
