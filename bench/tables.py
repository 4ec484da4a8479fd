"""Embedding tables for training on one CPU: TorchRec's EmbeddingBagCollection with Adam inside the backward pass.

FBGEMM's fused CPU optimizers do not include Adam, and torch.optim.SparseAdam sorts every id of every batch. Here the
gradient of each row is summed and applied in one walk over the batch. Rows of the batch get torch.optim.Adam's update
(Kingma & Ba 2015, algorithm 1); weights and moments of all other rows are left alone, as SparseAdam does.

B batch, F features, N embedding dim, R rows of all tables together.
"""

import numba
import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

from bench.workers import split_range

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults


# error_model: a check for division by zero would keep the update of a row from being vectorised (14 ms instead of 6).
@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _adam_rows(ids_FB, grad_BFN, first, last, slot_R, weight_RN, m_RN, v_RN, step_size, correction2):
    """Sum the gradients of each row that features [first, last) touch, then update those rows once.

    slot_R is -1 everywhere on entry and on exit. Features of different calls own different rows, so calls run at once.
    """
    batch, dim = ids_FB.shape[1], weight_RN.shape[1]
    rows = np.empty((last - first) * batch, np.int64)
    total = np.empty(((last - first) * batch, dim), np.float32)
    used = 0
    for f in range(first, last):
        for b in range(batch):
            row = ids_FB[f, b]
            slot = slot_R[row]
            if slot < 0:
                slot = used
                slot_R[row] = slot
                rows[slot] = row
                used += 1
                for n in range(dim):
                    total[slot, n] = grad_BFN[b, f, n]
            else:
                for n in range(dim):
                    total[slot, n] += grad_BFN[b, f, n]
    for slot in range(used):
        row = rows[slot]
        slot_R[row] = -1
        for n in range(dim):
            g = total[slot, n]
            m = m_RN[row, n] + (g - m_RN[row, n]) * np.float32(1 - BETA1)
            v = v_RN[row, n] + (g * g - v_RN[row, n]) * np.float32(1 - BETA2)
            m_RN[row, n] = m
            v_RN[row, n] = v
            weight_RN[row, n] -= step_size * m / (np.sqrt(v) * correction2 + np.float32(EPS))


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight_RN, ids_FB, tables):
        ctx.ids_FB, ctx.tables = ids_FB, tables
        return torch.nn.functional.embedding(ids_FB.t(), weight_RN)  # (B, F, N)

    @staticmethod
    def backward(ctx, grad_BFN):
        ctx.tables._apply_gradient(ctx.ids_FB, grad_BFN)
        return None, None, None


class AdamTables(nn.Module):
    """Takes the place of an EmbeddingBagCollection whose bags hold one id each; trains itself in backward.

    Names and values of the parameters are those of the collection it is made from. Set `learning_rate` before each
    backward pass.

    Raises:
        ValueError: tables of different dimensions, several features a table or tables a feature, weighted bags, or a
            table that is not to be trained.
    """

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        configs = collection.embedding_bag_configs()
        if len({c.embedding_dim for c in configs}) != 1:
            raise ValueError("AdamTables needs tables of one embedding dimension")
        features = [name for c in configs for name in c.feature_names]
        if len(features) != len(configs) or len(set(features)) != len(features):
            raise ValueError("AdamTables needs one feature a table and one table a feature")
        if collection.is_weighted():
            raise ValueError("AdamTables knows no weighted bags")
        if not all(p.requires_grad for p in collection.parameters()):
            raise ValueError("AdamTables trains every table: a frozen one cannot be among them")
        self._keys = features
        self._dims = [c.embedding_dim for c in configs]
        rows = [c.num_embeddings for c in configs]
        self._rows_F1 = torch.tensor(rows)[:, None]
        self._first_row_F1 = self._rows_F1.cumsum(0) - self._rows_F1
        self.embedding_bags = collection.embedding_bags
        # Each table becomes a view of one tensor: one gather serves all, and the names in state_dict stay.
        weight_RN = torch.cat([self.embedding_bags[c.name].weight.detach() for c in configs])
        for config, view in zip(configs, weight_RN.split(rows), strict=True):
            self.embedding_bags[config.name].weight = nn.Parameter(view)
        self._weight_RN = weight_RN.requires_grad_()
        self.register_buffer("exp_avg", torch.zeros_like(weight_RN))
        self.register_buffer("exp_avg_sq", torch.zeros_like(weight_RN))
        self.register_buffer("step_count", torch.zeros((), dtype=torch.int64))
        self._slot_R = np.full(sum(rows), -1, np.int32)
        self.learning_rate = 0.0
        self._waits_for_backward = False

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """(F, B) ids, one a bag -> KeyedTensor of (B, F * N).

        Raises:
            ValueError: a bag with no id or several, an id that its table does not have, or a second lookup before the
                backward pass of the first (each backward pass is a step of Adam).
        """
        if not (features.lengths() == 1).all():
            raise ValueError("AdamTables needs one id a bag")
        keys = features.keys()
        ids_FB = features.values().view(len(keys), -1)
        if keys != self._keys:
            ids_FB = ids_FB[[keys.index(key) for key in self._keys]]
        outside_FB = (ids_FB < 0) | (ids_FB >= self._rows_F1)
        if outside_FB.any():
            f, b = outside_FB.nonzero()[0].tolist()
            rows = int(self._rows_F1[f])
            raise ValueError(f"feature {self._keys[f]!r} has id {int(ids_FB[f, b])} and its table {rows} rows")
        if torch.is_grad_enabled():
            if self._waits_for_backward:
                raise ValueError("AdamTables can be looked up once for each backward pass")
            self._waits_for_backward = True
        out_BFN = _Lookup.apply(self._weight_RN, ids_FB + self._first_row_F1, self)
        return KeyedTensor(self._keys, self._dims, out_BFN.flatten(1))

    def _apply_gradient(self, ids_FB: torch.Tensor, grad_BFN: torch.Tensor) -> None:
        self._waits_for_backward = False
        self.step_count += 1
        step = int(self.step_count)
        arrays = [x.detach().numpy() for x in (self._weight_RN, self.exp_avg, self.exp_avg_sq)]
        step_size = np.float32(self.learning_rate / (1 - BETA1**step))
        correction2 = np.float32((1 - BETA2**step) ** -0.5)
        ids_FB, grad_BFN = ids_FB.numpy(), grad_BFN.contiguous().numpy()

        def update(first: int, last: int) -> None:
            _adam_rows(ids_FB, grad_BFN, first, last, self._slot_R, *arrays, step_size, correction2)

        split_range(len(ids_FB), update)


def use_adam_tables(model: nn.Module) -> list[AdamTables]:
    """Swap every EmbeddingBagCollection in the model for AdamTables, in place; returns them.

    Subclasses stay what they are: their own code would be lost.
    """
    made: dict[nn.Module, AdamTables] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is EmbeddingBagCollection:
                made[child] = made.get(child) or AdamTables(child)
                setattr(parent, name, made[child])
    return list(made.values())
