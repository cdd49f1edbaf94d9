#!/bin/sh
# usage: mutants.sh DIR. DIR is the folder of the mutants' programs.
# Check that the simulator catches every mutant, and print a table. Each mutant's patch contains the
# number of seeds to run. If $MOST is set, the script runs at most $MOST seeds for each mutant. The
# script runs as many mutants at the same time as there are processors. The mutants' patches are in
# the folder `mutants` beside this script.
set -u
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# shellcheck disable=SC2016 # for the shell that xargs starts
one='
	limit=$(sed -n "s/^seeds: //p" "$2/mutants/$3.patch")
	[ "${MOST:-$limit}" -lt "$limit" ] && limit=$MOST
	said=$("$1/$3" --seeds "1..$limit" 2>/dev/null) && said="seed - NOT CAUGHT"
	case $said in
	"seed - NOT CAUGHT") touch "$4/$3.missed" ;;
	"seed "*) ;;
	*) said="seed - DID NOT RUN" && touch "$4/$3.missed" ;;
	esac
	seed=$(echo "$said" | sed -n "1s/^seed \([^ ]*\).*/\1/p")
	printf "%-28s %10s %10s  %.110s\n" "$3" "$seed" \
		"$limit" "$(echo "$said" | sed -n "1s/^seed [^ ]* //p")" >"$4/$3.row"'

for patch in "$here"/mutants/*.patch; do
	basename "$patch" .patch
done | xargs -P "$(nproc)" -I NAME sh -c "$one" sh "$dir" "$here" NAME "$out"
printf '%-28s %10s %10s  %s\n' mutant 'first seed' limit 'what caught it'
cat "$out"/*.row
rows=$(find "$out" -name '*.row' | wc -l)
missed=$(find "$out" -name '*.missed' | wc -l)
echo "$rows mutants, $((rows - missed)) caught"
# A mutant without a row in the table did not run, which also counts as a failure.
patches=$(find "$here/mutants" -name '*.patch' | wc -l)
[ "$missed" = 0 ] && [ "$rows" = "$patches" ] && [ "$rows" -gt 0 ]
