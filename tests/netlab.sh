#!/usr/bin/env bash
# netlab.sh: a lab of N network namespaces ("hosts") on one bridge (the "switch"), each link
# shaped in both directions like a full-duplex NIC of the given rate.
#
#   netlab.sh up   PREFIX COUNT [RATE] [option...]   make PREFIX-1..PREFIX-COUNT
#   netlab.sh rate PREFIX RATE [option...]           reshape a lab in place (RATE "none": unshaped)
#   netlab.sh list [PREFIX]                          labs, or one lab's hosts and addresses
#   netlab.sh addr PREFIX I [CARD]                   address of host I, of its network card CARD (0)
#   netlab.sh exec PREFIX I CMD [ARG...]             run CMD on host I (replaces this process)
#   netlab.sh stat PREFIX                            bytes, packets and queue drops per host
#   netlab.sh down PREFIX [--kill]                   remove the lab; --kill also ends its processes
#
# RATE: as tc writes it, 500mbit, 1gbit, 2.5gbit; "none" (the default) leaves the links unshaped.
# Options of up and rate:
#   --burst BYTES   size of each shaper's token bucket (default: 0.5 ms of RATE, at least 80000, so
#                   that no GSO packet of 64 KiB has to be cut). After an idle time, this many
#                   bytes pass at full speed, so a smaller message sees too fast a link. For
#                   latency work at 1gbit, use --gso 16000 --burst 18000, which still reaches
#                   98 % of RATE. With smaller values, the shaper falls behind because of timers.
#   --queue BYTES   limit of the queue before each shaper (default: 16 ms of RATE, at least
#                   2000000). The default is large, so that a few senders to one host lose almost
#                   no packets. The shaper drops packets beyond the limit.
# Options of up alone:
#   --mtu N         link MTU (default 1500)
#   --gso BYTES     largest segmentation-offload packet the hosts may send (default: the system's,
#                   64 KiB); smaller: finer shaping, more CPU time
#   --cc NAME       TCP congestion control inside the hosts (default: the system's). The kernel
#                   accepts the name reno, the name of the system's default, and the names in
#                   net.ipv4.tcp_allowed_congestion_control of the first namespace
#   --subnet A.B.C  hosts get A.B.C.I/24 (default 10.77.0)
#   --cards K       each host has K network cards, eth0 to ethK-1 (default 1). Card J is on a bridge
#                   of its own, and has the address A.B.C+J.I. The switch routes between bridges,
#                   so a host reaches each address over each of its cards
#   --delay MS      each frame takes MS longer from host to host, so a round trip takes 2 MS longer
#                   (only with one card). A program in place of the bridge delays the frames
#                   (netlab_delay.py); the shapers are those of labs without a delay
# Option of rate:
#   --card J        reshape only card J of each host
#
# The switch is a namespace of its own (PREFIX-sw), so nothing is added to the caller's namespace,
# and labs with different prefixes are separate, even on the same subnet. Needs root, iproute2, and
# the kernel's veth, bridge and sch_tbf.
# Uplink: tbf on eth0 in the host. Downlink: tbf on the switch's port for that host.
# tbf counts Ethernet frames without preamble and checksum. With MTU 1500 and TCP timestamps, the
# payload is at most 1448/1514 = 95.6 % of RATE.
set -euo pipefail

me=${0##*/}
state=/run/netlab
die() { echo "$me: $*" >&2; exit 1; }
usage() { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; exit "${1:-2}"; }

ns_exists() { [[ -e /run/netns/$1 ]]; }
lab_ns() { # print the lab's namespaces that exist now
  local f
  for f in /run/netns/"$1"-*; do
    f=${f##*/}
    [[ $f =~ ^"$1"-(sw|[0-9]+)$ ]] && echo "$f"
  done
  return 0
}
check_prefix() {
  [[ ${1-} =~ ^[a-z][a-z0-9]{0,7}$ ]] || die "PREFIX: 1 to 8 of a-z 0-9, a letter first"
}
check_uint() { [[ $2 =~ ^[0-9]{1,12}$ ]] || die "$1: must be a whole number, not '$2'"; }
check_range() { check_uint "$1" "$2"; ((10#$2 >= $3 && 10#$2 <= $4)) || die "$1: $3 to $4"; }
need_lab() { [[ -r $state/$1 ]] || die "no lab '$1' (netlab.sh list shows them)"; }
get() { sed -n "s/^$2=//p" "$state/$1"; }
need_host() {
  check_uint I "$2"
  ((10#$2 >= 1 && 10#$2 <= $(get "$1" count))) || die "lab $1 has no host $2"
}

# Convert a rate such as 500mbit to bit/s. The default burst and queue are computed from it.
bits() {
  local n u
  [[ $1 =~ ^([0-9]+(\.[0-9]+)?)(bit|kbit|mbit|gbit)$ ]] ||
    die "RATE: like 500mbit or 1gbit, or none; not '$1'"
  n=${BASH_REMATCH[1]} u=${BASH_REMATCH[3]}
  awk -v n="$n" -v u="$u" \
    'BEGIN{m["bit"]=1;m["kbit"]=1e3;m["mbit"]=1e6;m["gbit"]=1e9;printf "%d\n",n*m[u]}'
}

burst='' queue='' mtu=1500 cc=keep gso='' subnet=10.77.0 cards=1 card='' kill=0 delay=''
options() { # arguments: "names of the allowed options" -- the arguments to parse
  local allowed=" $1 "; shift
  while (($#)); do
    [[ $allowed == *" $1 "* ]] || die "no such option here: $1"
    case $1 in
      --kill) kill=1; shift; continue ;;
      *) (($# >= 2)) || die "$1 needs a value" ;;
    esac
    case $1 in
      --burst) check_uint "$1" "$2"; burst=$2 ;;
      --queue) check_uint "$1" "$2"; queue=$2 ;;
      --mtu) check_range "$1" "$2" 576 65535; mtu=$2 ;;
      --gso) check_range "$1" "$2" 1500 65536; gso=$2 ;;
      --cc) [[ $2 =~ ^[a-z0-9_-]+$ ]] || die "--cc: a name"; cc=$2 ;;
      --cards) check_range "$1" "$2" 1 8; cards=$2 ;;
      --card) check_uint "$1" "$2"; card=$2 ;;
      --delay) check_range "$1" "$2" 1 10000; delay=$2 ;;
      --subnet)
        [[ $2 =~ ^([0-9]{1,3}\.){2}[0-9]{1,3}$ ]] || die "--subnet: like 10.77.0"
        subnet=$2 ;;
    esac
    shift 2
  done
}

shape() { # namespace device rate: let the device send at this rate
  if [[ $3 == none ]]; then
    tc -n "$1" qdisc del dev "$2" root 2>/dev/null || true
  else
    tc -n "$1" qdisc replace dev "$2" root tbf rate "$3" burst "$burst" limit "$queue"
  fi
}
shape_all() { # prefix count rate
  local i j b
  if [[ $3 != none ]]; then
    b=$(bits "$3")
    ((b >= 8000)) || die "RATE: at least 8kbit"
    : "${burst:=$((b / 16000 > 80000 ? b / 16000 : 80000))}"
    : "${queue:=$((b / 500 > 2000000 ? b / 500 : 2000000))}"
  fi
  for ((i = 1; i <= $2; i++)); do
    for ((j = 0; j < cards; j++)); do
      [[ -z $card || $card == "$j" ]] || continue
      shape "$1-$i" "eth$j" "$3"
      shape "$1-sw" "$(port "$i" "$j")" "$3"
    done
  done
}
port() { # host card: the switch's port
  if (($2)); then echo "p$1c$2"; else echo "p$1"; fi
}
card_subnet() { # card: its subnet
  echo "${subnet%.*}.$((${subnet##*.} + $1))"
}
save() { # prefix count rate
  printf 'count=%s\nrate=%s\nburst=%s\nqueue=%s\nmtu=%s\ngso=%s\ncc=%s\nsubnet=%s\ncards=%s\n' \
    "$2" "$3" "$burst" "$queue" "$mtu" "$gso" "$cc" "$subnet" "$cards" >"$state/.$1.new"
  mv "$state/.$1.new" "$state/$1"
}
remove() { # prefix: namespaces (their links go with them) and state
  local n
  for n in $(lab_ns "$1"); do ip netns del "$n" || true; done
  rm -f "$state/$1" "$state/.$1.new"
}
lock() {
  mkdir -p "$state"; exec 9>"$state/.$1.lock"
  flock -w 30 9 || die "lab $1 is being changed by another $me"
}
no_ipv6() { # namespace
  ip netns exec "$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 \
    net.ipv6.conf.default.disable_ipv6=1 2>/dev/null || true
}

cmd_up() {
  (($# >= 2)) || usage
  local p=$1 n=$2 rate=none i j ns rc=0
  shift 2
  check_prefix "$p"; check_uint COUNT "$n"
  n=$((10#$n)); ((n >= 1 && n <= 200)) || die "COUNT: 1 to 200"
  if (($#)) && [[ $1 != --* ]]; then rate=$1; shift; fi
  [[ $rate == none ]] || bits "$rate" >/dev/null
  options "--burst --queue --mtu --gso --cc --subnet --cards --delay" "$@"
  [[ -z $delay ]] || ((cards == 1)) || die "--delay needs hosts with one card"
  lock "$p"
  [[ ! -e $state/$p && -z $(lab_ns "$p") ]] || die "lab '$p' exists (netlab.sh down $p removes it)"
  trap 'rc=$?; if ((rc)); then remove '"$p"' 2>/dev/null; fi; exit $rc' EXIT
  trap 'exit 130' INT TERM HUP
  ip netns add "$p-sw"
  no_ipv6 "$p-sw"
  for ((j = 0; j < cards; j++)); do
    ip -n "$p-sw" link add "br$j" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    ip -n "$p-sw" link set "br$j" mtu "$mtu" up
    ((cards == 1)) || ip -n "$p-sw" addr add "$(card_subnet "$j").254/24" dev "br$j"
  done
  ((cards == 1)) || ip netns exec "$p-sw" sysctl -qw net.ipv4.ip_forward=1
  for ((i = 1; i <= n; i++)); do
    ns=$p-$i
    ip netns add "$ns"
    no_ipv6 "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv4.tcp_no_metrics_save=1
    [[ $cc == keep ]] || ip netns exec "$ns" sysctl -qw net.ipv4.tcp_congestion_control="$cc" ||
      die "--cc $cc: not allowed in a namespace here"
    ip -n "$ns" link set lo up
    for ((j = 0; j < cards; j++)); do
      plug "$ns" "$i" "$j"
    done
  done
  shape_all "$p" "$n" "$rate"
  save "$p" "$n" "$rate"
  [[ -z $delay ]] || forward "$p" "$n"
  # After its ports are up, the bridge needs some time before it forwards packets. Wait until host 1
  # reaches all other hosts.
  for ((i = 2; i <= n; i++)); do
    for ((j = 0; j < cards; j++)); do
      reach "$p-1" "$(card_subnet "$j").$i" || die "host 1 does not reach host $i"
    done
  done
}
plug() { # namespace host card: connect the card to its bridge
  local at
  at=$(port "$2" "$3")
  ip -n "$p-sw" link add "$at" mtu "$mtu" type veth peer name "eth$3" netns "$1" mtu "$mtu"
  ip -n "$p-sw" link set "$at" master "br$3" up
  ip -n "$1" addr add "$(card_subnet "$3").$2/24" dev "eth$3"
  [[ -z $gso ]] || ip -n "$1" link set "eth$3" gso_max_size "$gso" gso_max_segs 65535
  ip -n "$1" link set "eth$3" up
  ((cards == 1)) && return
  ip netns exec "$1" sysctl -qw "net.ipv4.conf.eth$3.rp_filter=2" # replies may take another card
  ip -n "$1" route add default via "$(card_subnet "$3").254" dev "eth$3" metric "$((100 + $3))"
}
forward() { # prefix count: delay the frames between the ports, which are in no bridge then
  local i
  for ((i = 1; i <= $2; i++)); do
    ip -n "$1-sw" link set "p$i" nomaster
  done
  # The lock's descriptor must not stay open.
  ip netns exec "$1-sw" setsid python3 "${BASH_SOURCE[0]%/*}/netlab_delay.py" "$delay" \
    $(seq -f 'p%g' "$2") </dev/null >/dev/null 2>&1 9>&- &
}
reach() { # namespace address: true once any packet came back, even the refusal of a closed port
  local e
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    e=$(ip netns exec "$1" timeout 1 bash -c "exec 3<>/dev/tcp/$2/9" 2>&1) && return 0
    [[ $e == *refused* ]] && return 0
    sleep 0.1
  done
  return 1
}

cmd_rate() {
  (($# >= 2)) || usage
  local p=$1 rate=$2 n
  shift 2
  check_prefix "$p"
  [[ $rate == none ]] || bits "$rate" >/dev/null
  lock "$p"; need_lab "$p"
  n=$(get "$p" count) mtu=$(get "$p" mtu) gso=$(get "$p" gso) cc=$(get "$p" cc)
  subnet=$(get "$p" subnet) cards=$(get "$p" cards)
  options "--burst --queue --card" "$@"
  shape_all "$p" "$n" "$rate"
  save "$p" "$n" "$rate"
}

cmd_list() {
  local f p i
  if (($#)); then
    check_prefix "$1"; need_lab "$1"
    for ((i = 1; i <= $(get "$1" count); i++)); do
      printf '%s-%d %s.%d rate=%s pids=%s\n' \
        "$1" "$i" "$(get "$1" subnet)" "$i" "$(get "$1" rate)" \
        "$(ip netns pids "$1-$i" 2>/dev/null | paste -sd, - | sed 's/^$/-/')"
    done
    return
  fi
  for f in "$state"/*; do
    [[ -f $f ]] || continue
    p=${f##*/}
    printf '%s %s\n' "$p" "$(paste -sd' ' "$f")"
  done
}

cmd_stat() {
  check_prefix "${1-}"; need_lab "$1"
  local i n; n=$(get "$1" count)
  printf '%-12s %15s %15s %11s %11s %9s %9s\n' \
    host tx_bytes rx_bytes tx_pkts rx_pkts up_drop down_drop
  for ((i = 1; i <= n; i++)); do
    printf '%-12s %s %9s %9s\n' "$1-$i" "$(traffic "$1-$i" eth0)" \
      "$(drops "$1-$i" eth0)" "$(drops "$1-sw" "p$i")"
  done
}
traffic() { # namespace device: bytes and packets, sent and received
  ip -n "$1" -s link show dev "$2" |
    awk '/RX:/{getline;r=$1;q=$2}/TX:/{getline;printf "%15s %15s %11s %11s",$1,r,$2,q}'
}
drops() { # namespace device
  tc -n "$1" -s qdisc show dev "$2" | sed -n 's/.*dropped \([0-9]*\).*/\1/p' |
    awk '{s+=$1}END{print s+0}'
}

# shellcheck disable=SC2086 # lists of process ids
cmd_down() {
  (($#)) || usage
  local p=$1 n pids
  shift
  check_prefix "$p"
  options "--kill" "$@"
  lock "$p"
  if [[ ! -e $state/$p && -z $(lab_ns "$p") ]]; then
    echo "$me: no lab '$p': nothing to do" >&2
    rm -f "$state/.$p.lock"
    return 0
  fi
  pids=$(ip netns pids "$p-sw" 2>/dev/null || true)
  [[ -z $pids ]] || kill $pids 2>/dev/null || true # netlab_delay.py
  pids=$(for n in $(lab_ns "$p"); do [[ $n == *-sw ]] || ip netns pids "$n"; done)
  if [[ -n $pids ]]; then
    ((kill)) || die "processes still run in lab '$p' (down --kill ends them):" $pids
    kill -TERM $pids 2>/dev/null || true
    for _ in $(seq 30); do
      pids=$(for n in $(lab_ns "$p"); do ip netns pids "$n"; done)
      [[ -n $pids ]] || break
      sleep 0.1
    done
    [[ -z $pids ]] || kill -KILL $pids 2>/dev/null || true
  fi
  remove "$p"
  rm -f "$state/.$p.lock"
}

(($#)) || usage
cmd=$1; shift
case $cmd in
  help | -h | --help) usage 0 ;;
esac
((EUID == 0)) || die "needs root"
case $cmd in
  up | rate | list | stat | down) "cmd_$cmd" "$@" ;;
  addr)
    (($# == 2 || $# == 3)) || usage
    check_prefix "$1"; need_lab "$1"; need_host "$1" "$2"
    subnet=$(get "$1" subnet)
    check_range CARD "${3:-0}" 0 "$(($(get "$1" cards) - 1))"
    echo "$(card_subnet "${3:-0}").$((10#$2))" ;;
  exec)
    (($# >= 3)) || usage
    check_prefix "$1"; need_lab "$1"; need_host "$1" "$2"
    ns=$1-$((10#$2)); shift 2
    exec ip netns exec "$ns" "$@" ;;
  *) usage ;;
esac
