#!/bin/sh
# Make a manual page for every other name that the installed pages of section 3 have in their NAME section, so that `man`
# finds each call:
#   links.sh MAN_DIR
set -eu
cd "${1:?usage: $0 MAN_DIR}/man3"
for page in bps*.3; do
	sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z_]*\).*/\1/p' "$page" | while read -r name; do
		[ -e "$name.3" ] || echo ".so man3/$page" >"$name.3"
	done
done
