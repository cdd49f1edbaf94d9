#!/bin/sh
# Print the tables of docs/results/scaling.md: tests/scale/tables.sh build/release/tests/sim-scale
# Bytes are eager, as over TCP. In rows named "reads" they are requested, as with verbs.
# shellcheck disable=SC2086 # variables hold lists of flags
set -eu
sim=$1
# Each row goes to a file of its own, so that one row is computed per processor.
rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
processors=$(nproc)
last=1000 # number of the last row; the files' names have this order
next() {
	last=$((last + 1))
	[ $((last % processors)) -ne 0 ] || wait
}
row() {
	label=$1
	shift
	next
	{ "$sim" --row --label "$label" "$@" >"$rows/$last" || touch "$rows/failed"; } &
}
table() {
	next
	printf '\n### %s\n\n' "$*" >"$rows/$last"
	"$sim" --head >>"$rows/$last"
}

# A server on an agent's machine carries less load than a server on a machine of its own. So it has
# 2 threads instead of 8.
big="--threads 8 --beside-threads 2 --steps 2"

table "BERT-large, 32 machines of 8 accelerators, 100 Gbit/s"
for k in 32 16 0; do
	row "by priority" --servers $k $big
done
for k in 32 16 0; do
	row "no priority" --servers $k $big --fifo --step-only
done
row "reads" --servers 32 $big --asking
row "25 Gbit/s" --rate 25 $big --step-only
row "25 Gbit/s, no priority" --rate 25 $big --fifo --step-only
row "crc at 40 GB/s" --crc-gbs 40 $big

table "Data threads of an agent: BERT-large"
for threads in 1 2 3 4 7 8; do
	row "$threads" --servers 32 $big --agent-threads $threads
done
for threads in 1 2 4; do
	row "$threads, k = 0" --servers 0 $big --agent-threads $threads --step-only
done
for threads in 1 2; do
	row "$threads, 25 Gbit/s" --servers 32 $big --rate 25 --agent-threads $threads --step-only
done
fast="--agents 8 --servers 8 --compute-ms 60 --step-only"
for threads in 1 2 4 8; do
	row "$threads, 60 ms of computing" $fast $big --agent-threads $threads
done
for threads in 1 4 8 16; do
	row "$threads, 60 ms, 400 Gbit/s" $fast --rate 400 --threads 16 --beside-threads 4 \
		--steps 2 --agent-threads $threads
done

# Kernels of blocks read 8.5 GB/s of operands in the cache (q8), and 4.5 (q4), instead of 46 (f16).
table "Fewer bytes: 32 machines of 8 accelerators"
row "f16" --servers 32 $big
row "q8" --servers 32 $big --dtype q8 --sum-gbs 8.5
row "q4" --servers 32 $big --dtype q4 --sum-gbs 4.5
row "f16, 25 Gbit/s" --servers 32 $big --rate 25
row "q8, 25 Gbit/s" --servers 32 $big --rate 25 --dtype q8 --sum-gbs 8.5
few="--gpus 1 --agents 4 --servers 4 --rate 1 --compute-ms 200 --steps 2"
for trace in bert-large vgg16 resnet50; do
	row "$trace, f16" --trace tests/traces/$trace.tsv $few
	row "$trace, q8" --trace tests/traces/$trace.tsv $few --dtype q8 --sum-gbs 8.5
	row "$trace, q4" --trace tests/traces/$trace.tsv $few --dtype q4 --sum-gbs 4.5
done

table "Communication alone: division of the sums"
small="--compute-ms 0 --gpus 1 --agents 4 --rate 10 --steps 2"
row "k = 2" $small --servers 2 $big
row "k = 2, equal threads" $small --servers 2
row "k = 4" $small --servers 4 $big
row "k = 4, reads" $small --servers 4 $big --asking
row "k = 0" $small --servers 0
row "k = 0, reads" $small --servers 0 --asking
row "k = 0, one card at half speed" $small --servers 0 --slow-agents 1 --slow-rate 5
row "k = 4, one server's card at half speed" $small --servers 4 --slow-servers 1 --slow-rate 5 $big
row "8 machines, k = 4" $small --agents 8 --servers 4 $big
row "16 machines, k = 0" $small --agents 16 --servers 0

table "Priority"
slow="--gpus 1 --agents 4 --servers 4 --rate 10 --compute-ms 200 --steps 2"
for trace in vgg16 resnet50 bert-large gpt2-xl; do
	row "$trace, by priority" --trace tests/traces/$trace.tsv $slow
	row "$trace, none" --trace tests/traces/$trace.tsv $slow --fifo
	row "$trace, by priority, reads" --trace tests/traces/$trace.tsv $slow --asking
	row "$trace, none, reads" --trace tests/traces/$trace.tsv $slow --fifo --asking
done

table "Partition size: VGG-16 as above"
for size in 64KiB 128KiB 256KiB 512KiB 1MiB 2MiB 4MiB; do
	row "$size" --trace tests/traces/vgg16.tsv $slow --part-bytes $size
done

table "Window of a connection's socket: VGG-16 as above"
for size in 64KiB 128KiB 1MiB 0; do
	row "$size" --trace tests/traces/vgg16.tsv $slow --socket-window $size
done

table "Window of reads of a connection: VGG-16 as above, reads"
for size in 64KiB 256KiB 1MiB 4MiB 8MiB 0; do
	row "$size" --trace tests/traces/vgg16.tsv $slow --read-window $size --asking
done

table "Window of an agent towards one data thread: VGG-16 as above"
for size in 1MiB 2MiB 4MiB 8MiB 0; do
	row "$size" --trace tests/traces/vgg16.tsv $slow --window $size
done

table "Size: BERT-large at 100 Gbit/s, k = n, one data thread, partitions of 1 MiB"
large="--step-only --threads 1 --part-bytes 1MiB"
for n in 8 32 128 256; do
	row "$n" $large --agents $n --servers $n --quantum 256KiB --steps 2
	row "$n, reads" --asking $large --agents $n --servers $n --quantum 256KiB --steps 2
done
row 512 $large --agents 512 --servers 512 --quantum 1MiB --steps 1
row "512, reads" --asking $large --agents 512 --servers 512 --quantum 1MiB --steps 1

wait
[ ! -e "$rows/failed" ] || exit 1
cat "$rows"/[0-9]*
