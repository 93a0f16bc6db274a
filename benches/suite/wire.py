"""When a machine did what, seen on the rack's bridge: independent of what any server logs."""

import ctypes
import socket
import struct
import threading
import time

SO_ATTACH_FILTER = 26
ETH_P_ALL = 3

# struct sock_filter: code, jump if true, jump if false, constant. Passes IPv4 packets that are UDP to 67 or 69, or the
# first packet (SYN without ACK) of a TCP connection.
PROGRAM = [
    (0x28, 0, 0, 12),         # 0: ether type
    (0x15, 0, 12, 0x0800),    # 1: not IPv4: 14
    (0x30, 0, 0, 23),         # 2: protocol
    (0x15, 0, 4, 17),         # 3: not UDP: 8
    (0xB1, 0, 0, 14),         # 4: X = length of the IP header
    (0x48, 0, 0, 16),         # 5: destination port
    (0x15, 6, 0, 67),         # 6: 13
    (0x15, 5, 6, 69),         # 7: 13, else 14
    (0x15, 0, 5, 6),          # 8: not TCP: 14
    (0xB1, 0, 0, 14),         # 9
    (0x50, 0, 0, 27),         # 10: TCP flags
    (0x54, 0, 0, 0x12),       # 11: SYN and ACK
    (0x15, 0, 1, 0x02),       # 12: not SYN alone: 14
    (0x06, 0, 0, 0xFFFF),     # 13: pass
    (0x06, 0, 0, 0),          # 14: drop
]
NAMES = {(17, 67): "dhcp", (17, 69): "tftp", (6, 80): "script", (6, 8443): "agent"}


class Wire(threading.Thread):
    """`first[mac][what]` is the monotonic time at which `mac` first did it: dhcp, tftp, script (boot HTTP), agent (8443)."""

    def __init__(self, interface):
        super().__init__(daemon=True)
        self.first = {}
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        code = b"".join(struct.pack("HBBI", *step) for step in PROGRAM)
        buffer = ctypes.create_string_buffer(code)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(PROGRAM), ctypes.addressof(buffer)))
        self.socket.bind((interface, 0))
        self.start()

    def run(self):
        while True:
            packet = self.socket.recv(128)
            now = time.monotonic()
            source = packet[6:12].hex(":")
            port = 14 + (packet[14] & 15) * 4 + 2
            name = NAMES.get((packet[23], int.from_bytes(packet[port:port + 2])))
            if name:
                self.first.setdefault(source, {}).setdefault(name, now)
