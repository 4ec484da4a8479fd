"""This rank's host and its link, where bench.cluster made them."""

import os
from pathlib import Path

DEVICE = "eth0"


def bits_per_s() -> int | None:
    """Rate of the host's link each way; None where the cluster is not emulated."""
    rate = os.environ.get("EMULATED_LINK")
    return int(rate) if rate else None


def sent_and_received() -> tuple[int, int]:
    """Bytes that the host's link has sent and received, headers included: of all its ranks together."""
    counters = Path("/sys/class/net", DEVICE, "statistics")
    return int((counters / "tx_bytes").read_text()), int((counters / "rx_bytes").read_text())


def description() -> str:
    """For the head of a report."""
    rate = bits_per_s()
    return f"links of {rate / 1e6:g} Mbit/s (emulated)" if rate else "no links of our own"
