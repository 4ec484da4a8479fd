"""Try the stack: import, look up and backpropagate, exchange between two processes. Each try is a process of its own.

    python -m bench.doctor.probes lookup           one EmbeddingBagCollection forward and backward, against indexing
    python -m bench.doctor.probes gloo RANK STORE  one of the two ranks of an AlltoAll over loopback

A probe prints nothing and exits 0 when the numbers are right; a crash or a hang is then only a failed probe.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.doctor.report import Finding
from bench.doctor.versions import REINSTALL

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0


def lookup() -> None:
    """Two tables, a batch of 3: sums and gradients must be what plain indexing gives."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

    sizes = {"embedding_dim": 4, "num_embeddings": 10}
    collection = EmbeddingBagCollection(
        tables=[EmbeddingBagConfig(name=f"table_{name}", feature_names=[name], **sizes) for name in "ab"]
    )
    # lengths, not offsets: the offsets are then computed by a compiled operator of fbgemm
    ids = KeyedJaggedTensor(["a", "b"], torch.tensor([1, 2, 2, 9, 0, 5]), lengths=torch.tensor([1, 2, 0, 1, 1, 1]))
    pooled = collection(ids).values()  # (3, 8)
    a, b = (collection.embedding_bags[f"table_{name}"].weight for name in "ab")
    expected = torch.cat([torch.stack([a[1], a[2] + a[2], a[1] * 0]), b[[9, 0, 5]]], dim=1)
    torch.testing.assert_close(pooled, expected)
    pooled.sum().backward()
    assert a.grad is not None and a.grad.sum(dim=1).tolist() == [0, 4, 8, 0, 0, 0, 0, 0, 0, 0]


def gloo(rank: int, store: str) -> None:
    """Rank r sends 10 r + j to rank j, and must hold 10 j + r from each rank j."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=30))
    sent = torch.tensor([10 * rank, 10 * rank + 1])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    assert received.tolist() == [rank, 10 + rank]
    dist.destroy_process_group()


def run(*probes: list[str]) -> str | None:
    """Run these command lines of this module at once. None when all are well, else the last line of a bad one."""
    # gloo would else look up the host's name, which need not resolve
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.doctor.probes", *probe],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for probe in probes
    ]
    deadline = time.monotonic() + TIMEOUT_S
    fault = None
    for process in processes:
        try:
            _, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if process.returncode:
                fault = fault or (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            fault = fault or f"no answer after {TIMEOUT_S:.0f} s"
            process.kill()
            process.communicate()
    return fault


def check() -> list[Finding]:
    """Both probes. Expects a triple that goes together; what fails all the same ends in one sentence."""
    started = time.monotonic()
    if run(["lookup"]):
        text = (
            "torchrec does not work although its versions fit, as after two builds of fbgemm in one folder: "
            f"{REINSTALL} (`python -m bench.doctor.probes lookup` shows the error)"
        )
        return [Finding("fail", "lookup", text), Finding("info", "gloo", "not tried")]
    text = f"EmbeddingBagCollection forward and backward are right ({time.monotonic() - started:.0f} s with the import)"
    findings = [Finding("ok", "lookup", text)]
    with tempfile.TemporaryDirectory() as folder:
        fault = run(*(["gloo", str(rank), f"{folder}/store"] for rank in range(2)))
    if fault:
        text = f"two processes could not exchange over loopback ({fault}): look for a firewall or a sandbox on `lo`"
        return [*findings, Finding("fail", "gloo", text)]
    return [*findings, Finding("ok", "gloo", "two processes exchanged an AlltoAll over loopback")]


if __name__ == "__main__":
    if sys.argv[1] == "lookup":
        lookup()
    else:
        gloo(int(sys.argv[2]), sys.argv[3])
