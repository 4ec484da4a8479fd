"""This rank's host and its link, where bench.cluster made them."""

import os
import time

import psutil
import torch.distributed as dist

from bench.cluster import DEVICE, GIVEN, WANTED
from bench.together import barrier, of_all

HEADERS, TALK = 0.03, 65_536  # what a link may carry beyond the payload: a share, and bytes of the ranks' other talk
OPEN = 10**11  # bits a second: more than any machine moves over loopback


def bits_per_s() -> int | None:
    """Rate of the host's link each way; None where the cluster is not emulated."""
    rate = os.environ.get("EMULATED_LINK")
    return int(rate) if rate else None


def sent_and_received() -> tuple[int, int]:
    """Bytes that the host's link has sent and received, headers included: of all its ranks together."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_sent, counters.bytes_recv


def dilation() -> float:
    """By how much more of the machine's cores a rank had where the links' rate was found (bench.calibrate)."""
    return float(os.environ.get("EMULATED_DILATION", 1))


def sent_by_hosts(ranks_per_host: int) -> list[int] | None:
    """Bytes that each host's link has sent, headers included; None where the links are not ours. All ranks call it."""
    if bits_per_s() is None:
        return None
    barrier()
    return of_all(sent_and_received()[0])[::ranks_per_host]


def agrees(sent: float, payload: float, calls: int) -> bool:
    """Whether a link that sent so many bytes in each of so many calls carried this payload a call and nothing else."""
    return payload * (1 - HEADERS) <= sent <= payload * (1 + HEADERS) + TALK / calls


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
