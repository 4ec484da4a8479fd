"""A turn of a contestant under the profiler, and where its time went (bench.breakdown)."""

import json
import os
import shutil
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench import breakdown as parts
from bench.ranks import Ranks
from bench.running import Running
from bench.together import barrier, of_all

TIMEOUT_S = 300  # for which ranks that are profiled wait for each other: reading a trace takes long


def breakdown(
    running: Running, warmup: int, iterations: int, keep: Path | None, trace_ranks: list[int], ranks: Ranks
) -> dict:
    """The breakdown part of a record (bench/record.schema.json): milliseconds, mean over iterations and ranks.

    Args:
        iterations: with the first `warmup`, which do not count.
        keep: where traces of `trace_ranks` stay, as KEEP-rank0.json; None: nowhere.
    """
    for _ in range(warmup):
        running()
    barrier()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler's backend writes to stderr
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if ranks.device.type == "cuda" else [])
    with profile(activities=activities) as profiler:
        for _ in range(iterations - warmup):
            with record_function(parts.ITERATION):
                running()
            if ranks.device.type == "cuda":
                torch.cuda.synchronize(ranks.device)
        running.drain()  # what begins under a profiler must end under it: torch writes into the memory of one that left
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        mine = parts.of_iterations(json.loads(trace.read_text())["traceEvents"])
        if keep is not None and ranks.rank in trace_ranks:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(trace, keep.with_name(f"{keep.name}-rank{ranks.rank}.json"))
    of_ranks = of_all(mine)
    means = [parts.mean(of_rank) for of_rank in of_ranks]
    waits = [statistics.mean(of_rank) for of_rank in parts.straggler_wait(of_ranks)]
    return {
        "iterations": len(mine),
        "iteration_ms": parts.mean(means).total / 1e3,
        **{part: value / 1e3 for part, value in asdict(parts.mean(means)).items()},
        "embedding_max": max(mean.embedding for mean in means) / 1e3,
        "dense_max": max(mean.dense for mean in means) / 1e3,
        "straggler_wait": statistics.mean(waits) / 1e3,
    }
