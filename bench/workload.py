"""What contestants train on: random data of given sizes, and the arguments of commands that say so."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torchrec import KeyedJaggedTensor
from torchrec.datasets.utils import Batch

from baselines import ModelSpec
from bench import contestants
from bench.arguments import positive, whole
from bench.batch import one_id_a_bag
from bench.contestants import Contestant
from bench.errors import UserError
from dmt import Topology

BATCHES = 4  # of random data, that iterations take in turn


@dataclass(frozen=True)
class Workload:
    """What every contestant is fed: F tables of `rows` rows, `local_batch` samples a rank, random ids, one a bag.

    ids are int32: TorchRec sends them as they come, and int64 would be twice the bytes.
    """

    features: int
    rows: int
    local_batch: int
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"f{i}" for i in range(self.features)]

    def batches(self, rank: int, dense_features: int, device: torch.device) -> Iterator[Batch]:
        """Without end; TorchRec keeps in a KeyedJaggedTensor what it has found out about it, so each is a new one."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + rank)
        drawn = []
        for _ in range(BATCHES):
            dense = torch.rand(self.local_batch, dense_features, generator=random)
            ids = torch.randint(self.rows, (self.local_batch, self.features), generator=random, dtype=torch.int32)
            label = torch.randint(2, (self.local_batch,), generator=random).float()
            drawn.append((dense.to(device), one_id_a_bag(self.names, ids).to(device), label.to(device)))
        while True:
            for dense, sparse, label in drawn:
                new = KeyedJaggedTensor(
                    sparse.keys(), sparse.values(), lengths=sparse.lengths(), stride=sparse.stride()
                )
                yield Batch(dense, new, label)


def checked(args: argparse.Namespace, topology: Topology, names: list[str]) -> list[Contestant]:
    """The contestants of these names, at the sizes of add_arguments.

    Raises:
        UserError: what cannot be.
    """
    if args.iterations <= args.warmup:
        raise UserError(
            f"--iterations {args.iterations}: the first {args.warmup} warm up and are not counted (--warmup); give more"
        )
    if topology.ranks == 1:
        raise UserError("one rank has nobody to exchange with: give more (--ranks)")
    if args.features < topology.hosts:
        raise UserError(f"--features {args.features}: {topology.hosts} hosts need a feature each, give as many")
    sizes = ("embedding_dim", "bottom", "over", "small_over", "cross_layers", "cross_rank")
    sizes += ("tower_cross_layers", "tower_cross_rank")
    if args.embedding_dim % 4:
        raise UserError(f"--embedding-dim {args.embedding_dim}: FBGEMM takes multiples of 4")
    spec = ModelSpec("none", **{name: getattr(args, name) for name in sizes})
    try:
        chosen = [contestants.parse(text, spec, topology.hosts) for text in names]
    except ValueError as error:
        raise UserError(f"--contestants: {error}") from None
    twice = [contestant.name for contestant in chosen if chosen.count(contestant) > 1]
    if twice:
        raise UserError(f"--contestants: {twice[0]} is there twice")
    return chosen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What contestants train on, and how long a turn is."""
    count = whole(1)
    parser.add_argument("--features", type=count, default=26, help="F, a table each (default %(default)s)")
    parser.add_argument("--rows", type=count, default=10_000, help="rows of a table (default %(default)s)")
    parser.add_argument("--local-batch", type=count, default=2048, help="samples a rank (default %(default)s)")
    parser.add_argument(
        "--wire", choices=("half", "single"), default="half", help="embeddings' numbers on the wire: 16 or 32 bits"
    )
    parser.add_argument(
        "--bucket-mib",
        type=positive,
        default=25,
        help="of dense gradients, sent while the next are computed (default %(default)s, DistributedDataParallel's)",
    )
    parser.add_argument("--iterations", type=count, default=6, help="of a turn, with its warm-up (default %(default)s)")
    parser.add_argument("--warmup", type=whole(0), default=1, help="iterations not counted (default %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of weights and data (default %(default)s)")
    ModelSpec.add_size_arguments(parser.add_argument_group("sizes of the models"))
