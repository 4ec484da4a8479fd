"""One training step of any model of the suite, on one CPU or on ranks: forward, loss, backward, Adam.

B batch, of this rank.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torchrec import KeyedJaggedTensor
from torchrec.optim.optimizers import in_backward_optimizer_filter

from bench import sharded
from bench.batch import one_id_a_bag
from bench.interaction import use_cpu_interaction
from bench.tables import use_adam_tables
from dmt import Topology

CPU = torch.device("cpu")


class NotFiniteLoss(ArithmeticError):
    """The loss of a batch is NaN or infinite; its update is not applied."""


class TrainStep:
    """Trains the model in place: tables with the Adam of bench.tables, all else with torch.optim.Adam.

    The model's EmbeddingBagCollection and InteractionArch modules are swapped for equal ones that are faster here.

    Args:
        topology: shard the model over the default process group, whose ranks it describes; None: one device.
        device: of this rank.

    Raises:
        ValueError: a model that cannot be sharded over the topology.
    """

    def __init__(self, model: nn.Module, topology: Topology | None = None, device: torch.device = CPU) -> None:
        if device.type == "cpu":
            use_cpu_interaction(model)
        if topology is None:
            self.model, self.tables = model, [module.adam for module in use_adam_tables(model)]
        else:
            self.model, self.tables = sharded.shard(model, topology, device)
        self._on_ranks, self._device = topology is not None, device
        parameters = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        self._dense = [p for p in parameters.values() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self._dense, lr=0.0, fused=True)
        for p in self._dense:  # as the optimizer's first step does it, so that a checkpoint has a place for each
            state = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.optimizer.state[p] = {"step": torch.zeros((), device=p.device)} | state

    def settle(self, names: list[str], dense_features: int) -> None:
        """Go through the model of ranks and back once, with a gradient of zero, before any step and any checkpoint.

        After its first time DistributedDataParallel lays gradients out anew, and a sum over ranks depends, in its last
        bits, on its place there: a run that goes on from a checkpoint would differ from one that was never stopped.
        """
        if self._on_ranks:
            ids = one_id_a_bag(names, torch.zeros(1, len(names), dtype=torch.int32)).to(self._device)
            (self.model(torch.zeros(1, dense_features, device=self._device), ids).sum() * 0).backward()
            self.resume(0)  # it was no step

    def __call__(self, dense: torch.Tensor, sparse: KeyedJaggedTensor, label_B: torch.Tensor, rate: float) -> float:
        """Learn from one batch at the given learning rate; returns its mean loss in nats, before the update.

        On ranks each gives its part of the batch, which may be empty; the mean is over all parts.

        Raises:
            NotFiniteLoss: the loss is not a finite number, on all ranks.
        """
        self._set_rate(rate)
        self.optimizer.zero_grad()
        logits_B = self.model(dense.to(self._device), sparse.to(self._device))
        loss, value = self._loss(logits_B, label_B.to(self._device))
        if not math.isfinite(value):
            raise NotFiniteLoss(f"loss is {value}")
        loss.backward()
        self.optimizer.step()
        return value

    def _loss(self, logits_B: torch.Tensor, label_B: torch.Tensor) -> tuple[torch.Tensor, float]:
        """What to differentiate here, and the mean over the whole batch."""
        if not self._on_ranks:
            loss = nn.functional.binary_cross_entropy_with_logits(logits_B, label_B)
            return loss, loss.item()
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B, label_B, reduction="sum")
        sums = torch.tensor([loss.item(), len(label_B)], dtype=torch.float64, device=self._device)
        dist.all_reduce(sums)
        total, rows = sums.tolist()
        return loss * (dist.get_world_size() / rows), total / rows

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for table in self.tables:
            table.learning_rate = rate
        if self._device.type != "cpu":
            for group in self.model.fused_optimizer.param_groups:
                group["lr"] = rate
            self.model.fused_optimizer.step()  # hands the rate to FBGEMM, which updates in backward

    def state_dict(self) -> dict[str, torch.Tensor | ShardedTensor]:
        """Weights and Adam's moments, in place, under the names of the one-device model whatever the ranks are."""
        weights = self.model.state_dict()
        state = {f"model.{name}": value for name, value in weights.items()}
        for moment in ("exp_avg", "exp_avg_sq"):
            of_weight = {p.data_ptr(): self.optimizer.state[p][moment] for p in self._dense}
            for table in self.tables:
                of_weight |= {w.data_ptr(): m for w, m in zip(table.weights, getattr(table, moment), strict=True)}
            for name, value in weights.items():
                if (found := _moment(value, of_weight)) is not None:
                    state[f"{moment}.{name}"] = found
        return state

    def resume(self, step: int) -> None:
        """Go on after that many steps, state_dict() having been filled with what it held then."""
        for table in self.tables:
            table.step = step
        if self._device.type != "cpu":
            self.model.fused_optimizer.set_optimizer_step(step)
        for p in self._dense:
            self.optimizer.state[p]["step"].fill_(step)


def _moment(weight: torch.Tensor | ShardedTensor, of_weight: dict[int, torch.Tensor]):
    """The moment of a weight, sharded as it is; None where it has none."""
    if not isinstance(weight, ShardedTensor):
        return of_weight.get(weight.data_ptr())
    shards = [Shard(of_weight[shard.tensor.data_ptr()], shard.metadata) for shard in weight.local_shards()]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, weight.metadata(), process_group=weight._process_group
    )
