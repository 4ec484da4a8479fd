"""Train one model for one pass over a prepared data set, evaluate it, and write the run's record.

    python -m bench.train --data results/laptop/data --model dmt_dlrm --towers 8 --embedding-dim 16 --seed 0 \
        --out results/laptop/runs/dmt_dlrm-T8-s0.json

Adam with linear warm-up and linear decay to zero; everything that is random follows from --seed. With --checkpoint a
killed run goes on from its last checkpoint and ends, on the same CPU, with the same numbers bit for bit.

B batch, F sparse features, N embedding dim.
"""

import argparse
import datetime
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

import baselines
from baselines.spec import ModelSpec
from bench import checkpoint, complexity, evaluate, record
from bench.arguments import cores, name, positive, share, whole
from bench.batch import one_id_a_bag, tables
from bench.data.reader import DataSet, open_dataset
from bench.errors import UserError, cli
from bench.step import NotFiniteLoss, TrainStep


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


def train(model: nn.Module, data: DataSet, args: argparse.Namespace, identity: dict) -> Progress:
    """One pass over the training split, in place; resumes from args.checkpoint where there is one that fits.

    Raises:
        Diverged: a loss that is not finite. The batch's update is not applied.
    """
    learn = TrainStep(model)
    rows, steps = data.rows("train"), math.ceil(data.rows("train") / args.batch_size)
    progress = Progress()
    state = checkpoint.load(args.checkpoint, identity) if args.checkpoint else None
    if state:
        learn.load_state_dict(state["learn"])
        progress = Progress(**state["progress"])
        print(f"resuming at step {progress.step} of {steps}", file=sys.stderr)

    model.train()
    bar = tqdm(total=rows, initial=progress.rows, desc=f"train {args.model}", unit="row", unit_scale=True)
    started, seconds_before = time.perf_counter(), progress.seconds
    for batch in data.batches("train", args.batch_size, seed=args.seed, start_step=progress.step):
        rate = learning_rate(progress.step, steps, args.learning_rate, args.warmup)
        try:
            loss = learn(batch.dense, one_id_a_bag(data.sparse_names, batch.sparse), batch.label, rate)
        except NotFiniteLoss as error:
            last = progress.rows + len(batch.label) - 1
            where = f"step {progress.step} of {steps}, training rows {progress.rows} to {last}"
            raise Diverged(f"{error} at {where}") from None

        progress.step += 1
        progress.rows += len(batch.label)
        progress.loss_sum += loss * len(batch.label)
        progress.seconds = seconds_before + time.perf_counter() - started
        bar.update(len(batch.label))
        if progress.step % 20 == 0 or progress.step == steps:
            bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        if args.checkpoint and progress.step % args.checkpoint_every == 0:
            checkpoint.save(args.checkpoint, identity, {"learn": learn.state_dict(), "progress": asdict(progress)})
    bar.close()
    return progress


def attempt(
    spec: ModelSpec, data: DataSet, args: argparse.Namespace, identity: dict
) -> tuple[str, str | None, dict | None]:
    """Build, train and evaluate: the record's status, its reason (None: ok) and its accuracy part (None: not ok)."""
    try:
        torch.manual_seed(args.seed)
        model = baselines.build(spec, tables(data.sparse_names, data.cardinalities, spec.embedding_dim))
        if hasattr(model, "start_from"):
            train_split = data.manifest["splits"]["train"]
            model.start_from(train_split["positives"] / train_split["rows"])
        progress = train(model, data, args, identity)
        scores = {
            split: evaluate.metrics(*evaluate.predict(model, data, split, args.batch_size))
            for split in ("validation", "test")
        }
    except (Diverged, evaluate.NotFinite) as error:
        return "diverged", str(error), None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
            raise
        return "oom", str(error).partition("\n")[0][:300] or "out of memory", None
    training = {
        "train_samples": progress.rows,
        "train_steps": progress.step,
        "samples_per_s": progress.rows / progress.seconds,
        "progressive_logloss": progress.loss_sum / progress.rows,
    }
    return "ok", None, scores | training


def run(args: argparse.Namespace) -> dict:
    """Train and evaluate as the arguments say; the record of the run, whatever its status.

    Raises:
        UserError: a data set, model or sizes that cannot be, or an output that cannot be written.
    """
    started = datetime.datetime.now(datetime.UTC)
    _check_places(args)
    torch.set_num_threads(args.threads)
    data = open_dataset(args.data)
    try:
        spec = replace(ModelSpec.from_args(args), dense_features=len(data.dense_names))
        tiny = complexity.tiny(spec, len(data.sparse_names))
    except ValueError as error:
        raise UserError(f"cannot build {args.model}: {error}") from None
    if tiny.partition is None and (spec.towers, spec.partition, spec.tower_dim) != (1, None, None):
        raise UserError(f"{spec.model} has no towers: leave --towers, --partition and --tower-dim out")

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
    status, reason, accuracy = attempt(spec, data, args, identity)
    splits, generator = data.manifest["splits"], data.manifest["generator"]
    return {
        "kind": "accuracy",
        "study": args.study,
        "run": Path(args.out).stem,
        **record.of_model(spec, tiny, args.partition),
        **record.of_process("bench.train", started),
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


def _check_places(args: argparse.Namespace) -> None:
    """Find out before training, not after it, that a result could not be written."""
    if Path(args.out).suffix != ".json":
        raise UserError(f"--out {args.out}: name a .json file (that is what bench.gather looks for)")
    for path in (Path(place) for place in (args.out, args.checkpoint) if place):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UserError(f"{path} cannot be written: name a file in a folder of your own")


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
    parser.add_argument("--checkpoint", help="file to resume from and to save to; removed when the record is written")
    parser.add_argument("--checkpoint-every", type=whole(1), default=500, help="steps (default %(default)s)")
    parser.add_argument("--threads", type=whole(1, 1024), default=cores(), help="CPU threads (default: all cores)")
    return parser.parse_args(argv)


def main() -> int:
    args = parse()
    with checkpoint.alone(args.checkpoint):
        result = run(args)
        record.write(args.out, result)
        if args.checkpoint:
            Path(args.checkpoint).unlink(missing_ok=True)
    if result["status"] == "ok":
        test = result["accuracy"]["test"]
        auc = f"{test['auc']:.5f}" if test["auc"] is not None else f"undefined ({test['auc_reason']})"
        print(f"{result['run']}: test AUC {auc}, logloss {test['logloss']:.5f}, {test['evaluated']} rows -> {args.out}")
    else:
        print(f"{result['run']}: {result['status']}: {result['reason']} -> {args.out}")
    return 0


if __name__ == "__main__":
    cli(main)
