#!/bin/sh
# The tables of docs/performance/scaling.md, on stdout: tests/scale/tables.sh build/release/tests/sim-scale
set -eu
sim=$1
bert() {
	"$sim" --row --trace tests/traces/bert-large.tsv "$@"
}

echo "## BERT-large, 32 machines of 8, 100 Gbit/s"
"$sim" --head
for k in 32 16 0; do
	bert --servers $k
done
for k in 32 16 0; do
	bert --servers $k --fifo
done
