#!/usr/bin/env python3
"""Forward Ethernet frames between the ports of a switch, each frame after a delay.

    netlab_delay.py MILLISECONDS PORT...

netlab.sh starts this program in the namespace of a lab's switch, in place of the kernel's bridge.
The kernel's own way (sch_netem) is missing in many kernels. A frame keeps its segmentation and
checksum offload (PACKET_VNET_HDR), so few large frames pass. Frames leave in the order in which
they came. The program runs until it is killed.
"""

import collections
import contextlib
import select
import socket
import struct
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
ETH_P_ALL = 3
HEADER_BYTES = 10  # struct virtio_net_hdr, before each frame
FRAME_BYTES = 1 << 17
BUFFER_BYTES = 32 << 20


def open_port(name: str) -> socket.socket:
    """Return a socket that receives and sends the frames of a network device."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for buffer in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        port.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


def main() -> None:
    delay_s = float(sys.argv[1]) / 1000
    ports = [open_port(name) for name in sys.argv[2:]]
    by_fd = {port.fileno(): port for port in ports}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    places: dict[bytes, socket.socket] = {}  # address of a host -> its port
    waiting: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for fd, _ in poll.poll(wait_s):
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame = by_fd[fd].recv(FRAME_BYTES)
                    waiting.append((time.monotonic() + delay_s, by_fd[fd], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, origin, frame = waiting.popleft()
            to, source = struct.unpack_from("6s6s", frame, HEADER_BYTES)
            places[source] = origin
            known = places.get(to)
            for port in ports if known is None else [known]:
                if port is not origin:
                    with contextlib.suppress(OSError):  # the queue of the port is full: a drop
                        port.send(frame)


if __name__ == "__main__":
    main()
