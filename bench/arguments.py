"""Types of command-line values, for argparse: what is out of range is refused with the range."""

import argparse
import math
import os
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """A whole number from low to high, both allowed."""

    def integer(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}, got {text}")
        return value

    return integer


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, got {text}")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return value


def name(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def parsed(parser: argparse.ArgumentParser, argv: list[str] | None = None) -> argparse.Namespace:
    """parser.parse_args(argv). Of the ranks of a job only the first says what is wrong, or shows the help."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    with ExitStack() as stack:
        if rank != "0":
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        return parser.parse_args(argv)
