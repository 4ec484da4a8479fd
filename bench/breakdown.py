"""Where the time of an iteration goes, from the events of a torch.profiler trace (Chrome's format).

    compute     operators, or kernels on a GPU
    embedding   exposed: exchanges of indices, embeddings and their gradients (AlltoAll, sends and receives,
                ReduceScatter, AllGather) while nothing is computed
    dense       exposed: synchronisation of dense gradients (AllReduce, Broadcast) while nothing is computed and no
                embeddings are exchanged
    others      the rest: Python, launches, reading a batch

They are the paper's four parts (figure 12) and add up to the iteration, since each moment counts once. Times are in
microseconds, as in a trace.

On CPUs operators are those of the thread that runs the iterations, and collectives gloo's, on any thread. gloo's sends
and receives say in a trace when they were asked for and when somebody waited for them, not when the bytes moved: of
those of bench.pairwise only the wait (WAIT) counts, as exchange, and an operator that waits does not compute meanwhile.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, fields

ITERATION = "iteration"  # the annotation around each
WAIT = "wait for a transfer"
EMBEDDING = (WAIT, "all_to_all", "alltoall", "sendrecv", "reduce_scatter", "reducescatter", "all_gather", "allgather")
DENSE = ("all_reduce", "allreduce", "broadcast", "reduce")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Breakdown:
    """Microseconds of one iteration."""

    compute: float
    embedding: float
    dense: float
    others: float

    @property
    def total(self) -> float:
        return self.compute + self.embedding + self.dense + self.others


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, as disjoint intervals in order."""
    found: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def without(intervals: list[Interval], holes: list[Interval]) -> list[Interval]:
    """What is in `intervals` and not in `holes`; both merged."""
    found, ends = [], [end for _, end in holes]
    for start, end in intervals:
        for hole in holes[bisect_right(ends, start) :]:
            if hole[0] >= end:
                break
            if hole[0] > start:
                found.append((start, hole[0]))
            start = max(start, hole[1])
        if start < end:
            found.append((start, end))
    return found


def length(intervals: list[Interval]) -> float:
    """Of merged intervals."""
    return sum(end - start for start, end in intervals)


def of_iterations(events: list[dict]) -> list[Breakdown]:
    """One Breakdown for each iteration of a trace, in order.

    Args:
        events: `traceEvents` of one rank's trace.

    Raises:
        ValueError: no iteration is marked.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    iterations = sorted((e for e in spans if _is(e, "user_annotation", ITERATION)), key=lambda event: event["ts"])
    if not iterations:
        raise ValueError(f"the trace has no annotation named {ITERATION!r}")
    compute, embedding, dense = _kinds(spans, iterations[0]["tid"])
    return [_breakdown(_interval(event), compute, embedding, dense) for event in iterations]


def _breakdown(
    iteration: Interval, compute: list[Interval], embedding: list[Interval], dense: list[Interval]
) -> Breakdown:
    def inside(intervals: list[Interval]) -> list[Interval]:
        start, end = iteration
        return [(max(start, a), min(end, b)) for a, b in intervals if b > start and a < end]

    computing = inside(compute)
    exchanging = without(inside(embedding), computing)
    synchronising = without(without(inside(dense), computing), exchanging)
    parts = [length(part) for part in (computing, exchanging, synchronising)]
    return Breakdown(*parts, others=iteration[1] - iteration[0] - sum(parts))


def _kinds(spans: list[dict], thread: int) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Merged intervals of computing, of exchanges and of dense synchronisation."""
    kernels = [event for event in spans if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if kernels:
        collective = [event for event in kernels if "nccl" in event["name"].lower()]
        computing = merged(_interval(event) for event in kernels if "nccl" not in event["name"].lower())
    else:
        waits = [event for event in spans if _is(event, "user_annotation", WAIT)]
        gloo = [e for e in spans if e.get("cat") == "user_annotation" and e["name"].startswith("gloo:")]
        collective = [event for event in gloo if not _named(event, ("send", "recv"))] + waits
        operators = [
            _interval(e)
            for e in spans
            if e.get("cat") == "cpu_op" and e["tid"] == thread and not e["name"].startswith("c10d::")
        ]
        computing = without(merged(operators), merged(map(_interval, waits)))
    return (
        computing,
        merged(_interval(event) for event in collective if _named(event, EMBEDDING)),
        merged(_interval(event) for event in collective if _named(event, DENSE) and not _named(event, EMBEDDING)),
    )


def _is(event: dict, category: str, name: str) -> bool:
    return event.get("cat") == category and event["name"] == name


def _named(event: dict, words: tuple[str, ...]) -> bool:
    name = event["name"].lower()
    return any(word in name for word in words)


def _interval(event: dict) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def straggler_wait(of_ranks: list[list[Breakdown]]) -> list[list[float]]:
    """How much longer each rank's exposed embedding communication took, in each iteration, than that of the rank which
    waited least: what it waited for the slowest rank, not for bytes. Microseconds, by rank and iteration.

    Raises:
        ValueError: ranks with different numbers of iterations.
    """
    least = [min(b.embedding for b in same) for same in zip(*of_ranks, strict=True)]
    return [[b.embedding - low for b, low in zip(of_rank, least, strict=True)] for of_rank in of_ranks]


def mean(breakdowns: list[Breakdown]) -> Breakdown:
    """Part by part."""
    return Breakdown(*(sum(getattr(b, part.name) for b in breakdowns) / len(breakdowns) for part in fields(Breakdown)))
