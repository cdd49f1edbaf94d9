#!/bin/sh
# Some installed pages of section 3 describe several calls. If a call in a page's NAME section has
# no page of its own, write a page that includes the shared page, so that `man` finds the call:
#   links.sh MAN_DIR
set -eu
cd "${1:?usage: $0 MAN_DIR}/man3"
for page in bps*.3; do
	sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z0-9_]*\).*/\1/p' "$page" | while read -r name; do
		[ -e "$name.3" ] || echo ".so man3/$page" >"$name.3"
	done
done
