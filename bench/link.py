"""This rank's host and its link, where bench.cluster made them."""

import os
import time

import psutil
import torch.distributed as dist

from bench.cluster import DEVICE, GIVEN, WANTED
from bench.together import barrier, of_all

HEADER = 14 + 20 + 32  # bytes of a packet's Ethernet, IP and TCP headers, the latter with time stamps
OFF, TALK = 0.03, 65_536  # by how much a link's payload may be off: a share, and bytes of the ranks' other talk
OPEN = 10**11  # bits a second: more than any machine moves over loopback


def bits_per_s() -> int | None:
    """Rate of the host's link each way; None where the cluster is not emulated."""
    rate = os.environ.get("EMULATED_LINK")
    return int(rate) if rate else None


def sent() -> int:
    """Bytes that the host's link has sent for all its ranks together, without the headers of its packets."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_sent - counters.packets_sent * HEADER


def dilation() -> float:
    """By how much more of the machine's cores a rank had where the links' rate was found (bench.calibrate)."""
    return float(os.environ.get("EMULATED_DILATION", 1))


def sent_by_hosts(ranks_per_host: int) -> list[int] | None:
    """Bytes that each host's link has sent, without headers; None where the links are not ours. All ranks call it."""
    if bits_per_s() is None:
        return None
    barrier()
    return of_all(sent())[::ranks_per_host]


def agrees(sent: float, payload: float, calls: int) -> bool:
    """Whether a link that sent so many bytes in each of so many calls carried this payload a call and nothing else."""
    return payload * (1 - OFF) <= sent <= payload * (1 + OFF) + TALK / calls


def set_rate(rate: int) -> None:
    """Give all links of the cluster this rate, in bits a second, each way. All ranks call it.

    Raises:
        TimeoutError: bench.cluster does not do it.
    """
    barrier()
    if dist.get_rank() == 0:
        _ask_for(rate)
    barrier()


def _ask_for(rate: int) -> None:
    partial = WANTED.with_suffix(".partial")
    partial.write_text(str(rate))
    partial.replace(WANTED)
    deadline = time.monotonic() + 30
    while not GIVEN.exists() or GIVEN.read_text() != str(rate):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the links did not get their rate of {rate} bits a second")
        time.sleep(0.01)


def description() -> str:
    """For the head of a report."""
    rate = bits_per_s()
    return f"links of {rate / 1e6:g} Mbit/s (emulated)" if rate else "no links of our own"
