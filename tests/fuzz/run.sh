#!/bin/sh
# Run every fuzz target in DIR for SECONDS, as many at a time as there are processors:
#   run.sh DIR SECONDS
# Each target starts with a copy of its corpus in tests/fuzz/corpus. Inputs that reach new code stay
# in DIR/corpus for the next run. Inputs that fail are stored in DIR/findings. The script fails if
# a target found a fault, or if there is no target.
set -eu
dir=${1:?usage: $0 DIR SECONDS}
seconds=${2:?usage: $0 DIR SECONDS}
cd "$(dirname "$0")/../.."

if [ "${3-}" ]; then
	name=$3
	mkdir -p "$dir/corpus/$name" "$dir/findings"
	cp -n "tests/fuzz/corpus/$name/"* "$dir/corpus/$name/" 2>/dev/null || true
	if "$dir/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
		-print_final_stats=1 -artifact_prefix="$dir/findings/$name-" "$dir/corpus/$name" \
		>"$dir/$name.log" 2>&1; then
		executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$name.log")
		echo "ok   $name: ${executions:-no} executions in $seconds s"
		[ "${executions:-0}" -gt 0 ]
	else
		echo "FAIL $name, see $dir/$name.log and $dir/findings"
		tail -n 40 "$dir/$name.log"
		exit 1
	fi
	exit 0
fi

names=$(find "$dir" -maxdepth 1 -name 'fuzz_*' -type f ! -name '*.log' -printf '%f\n' | sort)
if [ -z "$names" ]; then
	echo "no fuzz target in '$dir'" >&2
	exit 1
fi
echo "$names" | xargs -n 1 -P "$(nproc)" "tests/fuzz/run.sh" "$dir" "$seconds"
