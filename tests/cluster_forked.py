"""A rank that says, as a line of JSON, what it finds around it."""

import json
import os
import socket
import sys

import psutil

if __name__ == "__main__":
    addresses = psutil.net_if_addrs()[os.environ["GLOO_SOCKET_IFNAME"]]
    found = {
        "rank": int(os.environ["RANK"]),
        "process": os.getpid(),
        "parent": os.getppid(),
        "address": next(address.address for address in addresses if address.family == socket.AF_INET),
        "arguments": sys.argv[1:],
        "name": __name__,
        "threads": os.environ["OMP_NUM_THREADS"],
        "master": os.environ["MASTER_ADDR"],
    }
    os.write(1, (json.dumps(found) + "\n").encode())
