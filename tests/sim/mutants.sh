#!/bin/sh
# Every mutant must be caught: run each over its number of seeds and print a table.
# usage: mutants.sh DIR, where the mutants' programs are; their patches lie beside this script.
set -u
dir=$1
here=$(dirname "$0")
missed=0
printf '%-26s %10s %10s  %s\n' mutant 'first seed' limit 'what caught it'
for patch in "$here"/mutants/*.patch; do
	name=$(basename "$patch" .patch)
	limit=$(sed -n 's/^seeds: //p' "$patch")
	if said=$("$dir/$name" --seeds "1..$limit" 2>/dev/null); then
		said="seed - NOT CAUGHT"
		missed=$((missed + 1))
	fi
	printf '%-26s %10s %10s  %.110s\n' "$name" "$(echo "$said" | sed -n '1s/^seed \([^ ]*\).*/\1/p')" \
		"$limit" "$(echo "$said" | sed -n '1s/^seed [^ ]* //p')"
done
exit $((missed > 0))
