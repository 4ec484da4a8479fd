"""ModelSpec: what a model is called and how large it is. The defaults are the sizes of the DMT paper (MLSys 2024).

F sparse features, N their embedding dimension, T towers, D a tower module's output dimension.
"""

import argparse
import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from dmt import Partition, check_partition, naive_partition


def names() -> list[str]:
    """Names of all models, one for each file of this folder that is not a part of the frame."""
    modules = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in modules if name != "spec")


def check_name(model: str) -> None:
    """Raise ValueError, with the names there are, when no file of this folder builds `model`."""
    if model not in names():
        raise ValueError(f"unknown model {model!r}: choose one of {', '.join(names())}")


@dataclass(frozen=True)
class ModelSpec:
    """Name and sizes of a model; fields that a model has no use for are ignored by it.

    Hidden layers only: builders append the last layer of `bottom` (width N or D) and the single logit of an over arch.
    Raises ValueError for a size that is not positive, or a partition whose group count is not `towers`.
    """

    model: str
    dense_features: int = 13
    embedding_dim: int = 128  # N
    bottom: tuple[int, ...] = (512, 256)
    over: tuple[int, ...] = (1024, 1024, 512, 256)
    small_over: tuple[int, ...] = (1024, 512, 256)  # dmt_dlrm and dlrm_small_over
    cross_layers: int = 3
    cross_rank: int = 512
    tower_cross_layers: int = 2
    tower_cross_rank: int = 256
    towers: int = 1  # T
    tower_dim: int | None = None  # D; None: the paper's setting for the model and T
    partition: Partition | None = None  # feature indices of each tower; None: naive, feature i to tower i % T

    def __post_init__(self):
        sizes = {
            "embedding_dim": self.embedding_dim,
            "cross_layers": self.cross_layers,
            "cross_rank": self.cross_rank,
            "tower_cross_layers": self.tower_cross_layers,
            "tower_cross_rank": self.tower_cross_rank,
            "towers": self.towers,
            "tower_dim": 1 if self.tower_dim is None else self.tower_dim,
        }
        for name in ("bottom", "over", "small_over"):
            layers = getattr(self, name)
            if not layers:
                raise ValueError(f"{name} has no hidden layer: give at least one width")
            sizes[name] = min(layers)
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}: give a positive number")
        if self.dense_features < 0:
            raise ValueError(f"dense_features is {self.dense_features}: it cannot be negative")
        if self.partition is not None and len(self.partition) != self.towers:
            raise ValueError(
                f"the partition has {len(self.partition)} towers and towers is {self.towers}: make them equal"
            )

    def groups(self, features: int) -> Partition:
        """Feature indices of each tower. Raises ValueError where partition or towers do not fit `features` features."""
        if self.partition is None:
            return naive_partition(features, self.towers)
        check_partition(self.partition, features)
        return self.partition

    def bottom_layers(self, width: int) -> list[int]:
        """Layers of the MLP over dense features that ends in `width`. Raises ValueError where there are none."""
        if self.dense_features < 1:
            raise ValueError(f"{self.model} needs at least one dense feature, and the data have none")
        return [*self.bottom, width]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add one flag for each field but dense_features, which the data decide. Defaults are the paper's."""
        group = parser.add_argument_group("model")
        group.add_argument("--model", help=f"one of {', '.join(names())}")
        ModelSpec.add_size_arguments(group)
        group.add_argument("--towers", type=int, help="T (default: 1, or the groups of --partition)")
        group.add_argument("--tower-dim", type=int, help="D (default: the paper's setting for the model and T)")
        group.add_argument(
            "--partition",
            default="naive",
            metavar="naive|FILE",
            help="naive: feature i to tower i mod T; or a JSON file: a list of lists of feature indices",
        )

    @staticmethod
    def add_size_arguments(group: argparse._ActionsContainer) -> None:
        """Flags of the sizes that all models of a comparison share."""
        group.add_argument(
            "--embedding-dim", type=int, default=ModelSpec.embedding_dim, help="N (default: %(default)s)"
        )
        for name, what in (
            ("bottom", "hidden layers of the MLP over dense features"),
            ("over", "hidden layers of the MLP before the logit"),
            ("small_over", "the same for dmt_dlrm and dlrm_small_over"),
        ):
            widths = getattr(ModelSpec, name)
            group.add_argument(
                f"--{name.replace('_', '-')}",
                type=_widths,
                default=widths,
                metavar="W,W,...",
                help=f"{what} (default: {','.join(map(str, widths))})",
            )
        for name, what in (
            ("cross_layers", "layers of the DCN cross network"),
            ("cross_rank", "rank of these layers"),
            ("tower_cross_layers", "layers of a DCN tower module's cross network"),
            ("tower_cross_rank", "rank of these layers"),
        ):
            flag = f"--{name.replace('_', '-')}"
            group.add_argument(flag, type=int, default=getattr(ModelSpec, name), help=f"{what} (default: %(default)s)")

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> "ModelSpec":
        """ModelSpec of parsed flags. Raises ValueError, one line, for an unknown model or a partition file at fault."""
        if args.model is None:
            raise ValueError(f"no model given: add --model with one of {', '.join(names())}")
        check_name(args.model)
        partition = None if args.partition == "naive" else read_partition(args.partition)
        towers = args.towers if args.towers is not None else len(partition) if partition else 1
        sizes = ("embedding_dim", "bottom", "over", "small_over", "cross_layers", "cross_rank")
        sizes += ("tower_cross_layers", "tower_cross_rank", "tower_dim")
        return cls(
            model=args.model, towers=towers, partition=partition, **{name: getattr(args, name) for name in sizes}
        )


def read_partition(path: str) -> Partition:
    """Partition in a JSON file: a list of lists of feature indices. Raises ValueError, one line, for anything else."""
    try:
        groups = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the partition file {path}: {error}") from None
    if not isinstance(groups, list) or not all(
        isinstance(group, list) and all(type(index) is int for index in group) for group in groups
    ):
        raise ValueError(f"{path} is no partition: it must hold a list of lists of feature indices")
    return tuple(tuple(group) for group in groups)


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layer widths such as 512,256") from None
