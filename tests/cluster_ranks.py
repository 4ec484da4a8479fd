"""A rank for tests of bench.cluster, without torch: sends SIZE bytes to each of the ranks given, and gets as many.

python cluster_ranks.py SIZE RANK...    prints the seconds it took and what the environment says
"""

import os
import socket
import sys
import threading
import time

rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
data = bytes(int(sys.argv[1]))
group = [int(word) for word in sys.argv[2:]]


def address(of: int) -> tuple[str, int]:
    emulated = os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    return (f"10.77.0.{of // local + 1}" if emulated else "127.0.0.1"), 21000 + of


def receive(server: socket.socket) -> None:
    for _ in group:
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 20):
                pass


if rank in group:
    with socket.create_server(address(rank)) as server:
        receiver = threading.Thread(target=receive, args=(server,))
        receiver.start()
        started = time.monotonic()
        for to in group:
            deadline = time.monotonic() + 20
            while True:
                try:
                    connection = socket.create_connection(address(to), timeout=20)
                    break
                except OSError:  # it has not started yet
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            with connection:
                connection.sendall(data)
        receiver.join()
    line = f"rank {rank} of {size}, {local} a host: {time.monotonic() - started} s\n"
    os.write(1, line.encode())  # whole: ranks share one output
