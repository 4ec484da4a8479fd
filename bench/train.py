"""Train one model for one pass over a prepared data set, evaluate it, and write the run's record.

    python -m bench.train --data results/laptop/data --model dmt_dlrm --towers 8 --embedding-dim 16 --seed 0 \
        --out results/laptop/runs/dmt_dlrm-T8-s0.json

Adam with linear warm-up and linear decay to zero; everything that is random follows from --seed. With --checkpoint a
killed run goes on from its last checkpoint and ends, on the same CPU, with the same numbers bit for bit.

    torchrun --nproc-per-node 4 -m bench.train --ranks-per-host 2 ...

trains the same model from the same weights on the same batches, divided among the ranks: the same numbers but for the
order of floating-point sums. A checkpoint of one number of ranks can go on at another.

B batch, F sparse features, N embedding dim.
"""

import argparse
import datetime
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

import baselines
from baselines.spec import ModelSpec
from bench import checkpoint, complexity, evaluate, record
from bench.arguments import cores, name, parsed, positive, share, whole
from bench.batch import one_id_a_bag, tables
from bench.data.reader import DataSet, open_dataset
from bench.errors import UserError, cli
from bench.ranks import Ranks, joined
from bench.step import NotFiniteLoss, TrainStep
from bench.together import ALONE, of_all
from dmt import Topology

TIMEOUT_S = 600  # for which ranks wait for each other: the first one computes the metrics of all rows alone


class NoMemory(Exception):
    """A rank has not enough memory for the model; all ranks know it."""


class Diverged(ArithmeticError):
    """The loss is NaN or infinite; the message says at which step and rows."""


@dataclass
class Progress:
    """What a pass over the training split has done so far; stored in each checkpoint."""

    step: int = 0
    rows: int = 0
    loss_sum: float = 0.0  # nats, over rows, each scored before it is learned from
    seconds: float = 0.0  # in the training loop: reading and checkpoints included


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Rate of step 0..steps-1: up to the peak over the first `warmup` share of the steps, then linearly towards 0."""
    up = max(1, round(warmup * steps))
    return peak * min((step + 1) / up, (steps - step) / max(1, steps - up))


def train(
    learn: TrainStep, data: DataSet, args: argparse.Namespace, identity: dict, start: Progress, ranks: Ranks
) -> Progress:
    """One pass over the training split, in place, from where `start` is; what is done at its end.

    Raises:
        Diverged: a loss that is not finite, on all ranks. The batch's update is not applied.
    """
    progress = replace(start)
    rows, steps = data.rows("train"), math.ceil(data.rows("train") / args.batch_size)
    learn.model.train()
    with tqdm(
        total=rows,
        initial=progress.rows,
        desc=f"train {args.model}",
        unit="row",
        unit_scale=True,
        disable=not ranks.first,
    ) as bar:
        started = time.perf_counter()
        part = (ranks.rank, ranks.size)
        for batch in data.batches("train", args.batch_size, seed=args.seed, start_step=progress.step, part=part):
            size = min(args.batch_size, rows - progress.rows)  # of all ranks
            rate = learning_rate(progress.step, steps, args.learning_rate, args.warmup)
            try:
                loss = learn(batch.dense, one_id_a_bag(data.sparse_names, batch.sparse), batch.label, rate)
            except NotFiniteLoss as error:
                last = progress.rows + size - 1
                where = f"step {progress.step} of {steps}, training rows {progress.rows} to {last}"
                raise Diverged(f"{error} at {where}") from None

            progress.step += 1
            progress.rows += size
            progress.loss_sum += loss * size
            progress.seconds = start.seconds + time.perf_counter() - started
            bar.update(size)
            if progress.step % 20 == 0 or progress.step == steps:
                bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            if args.checkpoint and progress.step % args.checkpoint_every == 0:
                checkpoint.save(args.checkpoint, identity, asdict(progress), learn.state_dict())
    progress.seconds = max(of_all(progress.seconds))
    return progress


def begin(
    spec: ModelSpec, data: DataSet, args: argparse.Namespace, identity: dict, ranks: Ranks, topology: Topology | None
) -> tuple[TrainStep, Progress]:
    """The model ready to learn, at its initial weights or at those of args.checkpoint where there is one that fits.

    Raises:
        NoMemory: a rank cannot build the model; on all ranks.
        MemoryError, RuntimeError: no room for what comes after, on this rank.
        UserError: a model that cannot be on these ranks.
    """

    def build() -> nn.Module:
        torch.manual_seed(args.seed)
        model = baselines.build(spec, tables(data.sparse_names, data.cardinalities, spec.embedding_dim))
        if hasattr(model, "start_from"):
            train_split = data.manifest["splits"]["train"]
            model.start_from(train_split["positives"] / train_split["rows"])
        return model

    def new() -> TrainStep:
        try:
            learn = TrainStep(_with_memory(build), topology, ranks.device)
        except ValueError as error:
            raise UserError(f"cannot train {spec.model} on {ranks.size} ranks: {error}") from None
        learn.settle(data.sparse_names, len(data.dense_names))
        return learn

    learn, stored, damage = new(), None, None
    try:
        stored = checkpoint.load(args.checkpoint, identity, learn.state_dict()) if args.checkpoint else None
    except checkpoint.Damaged as error:
        damage = str(error)
    if damage:
        if ranks.first:
            print(f"{damage}: starting anew", file=sys.stderr)
        del learn  # it may be half filled, and there may be no room for two
        learn = new()
    if stored is None:
        return learn, Progress()
    progress = Progress(**stored)
    learn.resume(progress.step)
    if ranks.first:
        steps = math.ceil(data.rows("train") / args.batch_size)
        print(f"resuming at step {progress.step} of {steps}", file=sys.stderr)
    return learn, progress


def _with_memory(make: Callable[[], nn.Module]) -> nn.Module:
    """make() on every rank. Raises NoMemory on all where one has not enough."""
    made, reason = None, None
    try:
        made = make()
    except (MemoryError, RuntimeError) as error:
        reason = _out_of_memory(error)
        if reason is None:
            raise
    for said in of_all(reason):
        if said is not None:
            raise NoMemory(said)
    return made


def _out_of_memory(error: MemoryError | RuntimeError) -> str | None:
    """What the error says, in one line, when it is that memory was not enough."""
    if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
        return None
    return str(error).partition("\n")[0][:300] or "out of memory"


def attempt(
    spec: ModelSpec, data: DataSet, args: argparse.Namespace, identity: dict, ranks: Ranks, topology: Topology | None
) -> tuple[str, str | None, dict | None]:
    """Build, train and evaluate: the record's status, its reason (None: ok) and its accuracy part (None: not ok).

    All ranks find the same status; the scores are rank 0's.
    """
    try:
        learn, start = begin(spec, data, args, identity, ranks, topology)
        progress = train(learn, data, args, identity, start, ranks)
        scores = {}
        for split in ("validation", "test"):
            predicted = evaluate.predict(learn.model, data, split, args.batch_size, ranks)
            scores[split] = predicted and evaluate.metrics(*predicted)
    except (Diverged, evaluate.NotFinite) as error:
        return "diverged", str(error), None
    except NoMemory as error:
        return "oom", str(error), None
    except (MemoryError, RuntimeError) as error:
        reason = _out_of_memory(error)
        if reason is None or ranks.size > 1:  # the others are at work: this ends them, and there is no record
            raise
        return "oom", reason, None
    training = {
        "train_samples": progress.rows,
        "train_steps": progress.step,
        "samples_per_s": progress.rows / progress.seconds,
        "progressive_logloss": progress.loss_sum / progress.rows,
    }
    return "ok", None, scores | training


def run(args: argparse.Namespace, ranks: Ranks = ALONE) -> dict | None:
    """Train and evaluate as the arguments say, on all ranks; on rank 0 the record of the run, whatever its status.

    Raises:
        UserError: a data set, model, sizes or ranks that cannot be, or an output that cannot be written.
    """
    started = datetime.datetime.now(datetime.UTC)
    _check_places(args, ranks)
    torch.set_num_threads(max(1, args.threads // ranks.ranks_per_host))
    data = open_dataset(args.data)
    try:
        spec = replace(ModelSpec.from_args(args), dense_features=len(data.dense_names))
        tiny = complexity.tiny(spec, len(data.sparse_names))
    except ValueError as error:
        raise UserError(f"cannot build {args.model}: {error}") from None
    if tiny.partition is None and (spec.towers, spec.partition, spec.tower_dim) != (1, None, None):
        raise UserError(f"{spec.model} has no towers: leave --towers, --partition and --tower-dim out")
    topology = _topology(ranks, args.ranks_per_host, tiny.partition and len(tiny.partition))

    settings = ("seed", "batch_size", "learning_rate", "warmup", "threads")
    options = {**asdict(spec), **{key: getattr(args, key) for key in settings}}
    identity = {  # what the numbers depend on
        **options,
        "split_hash": data.manifest["split_hash"],
        "cardinalities": data.cardinalities,
        "source_hash": record.source_hash(),
        "versions": record.versions(),
        "cpu": record.hardware()["cpu"],
    }
    _check_agreement(identity)
    together = topology if dist.is_initialized() else None
    status, reason, accuracy = attempt(spec, data, args, identity, ranks, together)
    if not ranks.first:
        return None
    splits, generator = data.manifest["splits"], data.manifest["generator"]
    return {
        "kind": "accuracy",
        "study": args.study,
        "run": Path(args.out).stem,
        **record.of_model(spec, tiny, args.partition),
        **record.of_process("bench.train", started, topology.ranks_per_host),
        "seed": args.seed,
        "data": {
            "name": data.manifest["name"],
            "split_hash": data.manifest["split_hash"],
            **{f"{split}_rows": splits[split]["rows"] for split in ("train", "validation", "test")},
            "auc_ceiling": generator and generator["auc_ceiling"]["test"],
        },
        "options": options,
        "status": status,
        "reason": reason,
        "accuracy": accuracy,
        "complexity": {**complexity.count(tiny, spec, data.cardinalities), "sizes": "study"},
    }


def _topology(ranks: Ranks, ranks_per_host: int | None, towers: int | None) -> Topology:
    """Ranks on hosts, and hosts a tower: one, or as many as there are for each tower where hosts outnumber towers."""
    try:
        topology = Topology(ranks.size, ranks_per_host or ranks.ranks_per_host)
        if towers is not None and towers < topology.hosts and topology.hosts % towers == 0:
            topology = replace(topology, hosts_per_tower=topology.hosts // towers)
        if towers is not None:
            topology.slot_of_tower(towers)
    except ValueError as error:
        raise UserError(f"cannot lay out the ranks: {error}") from None
    return topology


def _check_agreement(identity: dict) -> None:
    """Raise UserError where ranks would train on different data, or with different code."""
    shared = {key: value for key, value in identity.items() if key not in ("cpu", "threads")}
    of_ranks = of_all(shared)
    for rank, other in enumerate(of_ranks):
        for key, value in other.items():
            if value != of_ranks[0][key]:
                raise UserError(f"rank {rank} has another {key.replace('_', ' ')} than rank 0: give all ranks the same")


def _check_places(args: argparse.Namespace, ranks: Ranks) -> None:
    """Find out before training, not after it, that a result could not be written."""
    if args.checkpoint and ranks.device.type != "cpu":
        raise UserError("--checkpoint: what the tables' optimizer remembers on GPUs is not stored yet; leave it out")
    if Path(args.out).suffix != ".json":
        raise UserError(f"--out {args.out}: name a .json file (that is what bench.gather looks for)")
    for path in (Path(place) for place in (args.out, args.checkpoint) if place):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"{path} cannot be written: name a place in a folder of your own")
    if Path(args.out).is_dir():
        raise UserError(f"{args.out} cannot be written: it is a folder")
    if args.checkpoint:
        checkpoint.check_place(args.checkpoint)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", required=True, help="folder of a prepared data set (python -m bench.data.prepare)")
    parser.add_argument("--out", required=True, help="the record to write, a .json file named after the run")
    parser.add_argument("--study", type=name, default="none", help="name of the study that the run belongs to")
    ModelSpec.add_arguments(parser)
    parser.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, help="of weights and of the order of training rows"
    )
    parser.add_argument("--batch-size", type=whole(1), default=4096, help="rows a step (default %(default)s)")
    parser.add_argument("--learning-rate", type=positive, default=1e-3, help="Adam's peak (default %(default)s)")
    parser.add_argument("--warmup", type=share, default=0.1, help="share of the steps (default %(default)s)")
    parser.add_argument(
        "--checkpoint",
        help="folder to resume from and to save to, which all ranks see; removed when the record is written",
    )
    parser.add_argument("--checkpoint-every", type=whole(1), default=500, help="steps (default %(default)s)")
    parser.add_argument(
        "--threads",
        type=whole(1, 1024),
        default=cores(),
        help="CPU threads, for all ranks of a machine together (default: all cores)",
    )
    parser.add_argument(
        "--ranks-per-host",
        type=whole(1),
        help="ranks of a host in the model's layout; several hosts may stand on one machine (default: a machine's)",
    )
    return parsed(parser, argv)


def main() -> int:
    args = parse()
    with joined(TIMEOUT_S) as ranks, checkpoint.alone(args.checkpoint if ranks.first else None):
        result = run(args, ranks if dist.is_initialized() else ALONE)  # one process alone trains on its CPU
        if result:
            record.write(args.out, result)
            if args.checkpoint:
                checkpoint.remove(args.checkpoint)
            print(f"{result['run']}: {_outcome(result)} -> {args.out}")
    return 0


def _outcome(result: dict) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result['reason']}"
    test = result["accuracy"]["test"]
    auc = f"{test['auc']:.5f}" if test["auc"] is not None else f"undefined ({test['auc_reason']})"
    return f"test AUC {auc}, logloss {test['logloss']:.5f}, {test['evaluated']} rows"


if __name__ == "__main__":
    cli(main)
