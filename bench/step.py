"""One training step of any model of the suite on one CPU: forward, loss, backward, Adam.

B batch.
"""

import math

import torch
from torch import nn
from torchrec import KeyedJaggedTensor

from bench.interaction import use_cpu_interaction
from bench.tables import use_adam_tables


class NotFiniteLoss(ArithmeticError):
    """The loss of a batch is NaN or infinite; its update is not applied."""


class TrainStep:
    """Trains the model in place: tables with the Adam of bench.tables, all else with torch.optim.Adam.

    The model's EmbeddingBagCollection and InteractionArch modules are swapped for equal ones that are faster here.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        use_cpu_interaction(model)
        self.tables = use_adam_tables(model)
        in_tables = {id(p) for table in self.tables for p in table.parameters()}
        dense = [p for p in model.parameters() if id(p) not in in_tables]
        self.optimizer = torch.optim.Adam(dense, lr=0.0, fused=True)

    def __call__(self, dense: torch.Tensor, sparse: KeyedJaggedTensor, label_B: torch.Tensor, rate: float) -> float:
        """Learn from one batch at the given learning rate; returns its mean loss in nats, before the update.

        Raises:
            NotFiniteLoss: the loss is not a finite number.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for table in self.tables:
            table.learning_rate = rate
        self.optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(dense, sparse), label_B)
        value = loss.item()
        if not math.isfinite(value):
            raise NotFiniteLoss(f"loss is {value}")
        loss.backward()
        self.optimizer.step()
        return value

    def state_dict(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
