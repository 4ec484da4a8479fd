"""Embedding tables for training on CPUs: Adam of rows inside the backward pass.

FBGEMM's fused CPU optimizers do not include Adam, and torch.optim.SparseAdam sorts every id of every batch. Here the
gradient of each row is summed and applied in one walk over the batch. Rows of the batch get torch.optim.Adam's update
(Kingma & Ba 2015, algorithm 1); weights and moments of all other rows are left alone, as SparseAdam does.

B batch, F features, N embedding dim, D sum of N over the features, R rows of all tables together.
"""

import numba
import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

from bench.together import of_all
from bench.workers import split_range

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults


# error_model: a check for division by zero would keep the update of a row from being vectorised (14 ms instead of 6).
@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _adam_rows(ids, offsets, grad_BD, column, slot_R, weight_RN, m_RN, v_RN, step_size, correction2):
    """Sum the gradients of each row that the bags of one feature touch, then update those rows once.

    Bag b holds ids[offsets[b] : offsets[b + 1]]; the gradient of its sum is grad_BD[b, column : column + N]. slot_R is
    -1 everywhere on entry and on exit. Features of different tables own different rows, so their calls run at once.
    """
    batch, dim = len(offsets) - 1, weight_RN.shape[1]
    rows = np.empty(offsets[batch] - offsets[0], np.int64)
    total = np.empty((len(rows), dim), np.float32)
    used = 0
    for b in range(batch):
        grad_N = grad_BD[b, column : column + dim]  # an index of column + n would not be vectorised
        for i in range(offsets[b], offsets[b + 1]):
            row = ids[i]
            slot = slot_R[row]
            if slot < 0:
                slot = used
                slot_R[row] = slot
                rows[slot] = row
                used += 1
                for n in range(dim):
                    total[slot, n] = grad_N[n]
            else:
                for n in range(dim):
                    total[slot, n] += grad_N[n]
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


class RowAdam:
    """Adam for tables with one feature each: (rows, N) weights, updated in place, and their moments.

    Set `learning_rate` before each update; `step` counts the updates.
    """

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.weights = [weight.detach() for weight in weights]
        self.exp_avg = [torch.zeros_like(weight) for weight in self.weights]
        self.exp_avg_sq = [torch.zeros_like(weight) for weight in self.weights]
        self.step = 0
        self.learning_rate = 0.0
        self._slots = [np.full(len(weight), -1, np.int32) for weight in weights]
        self._arrays = [
            tuple(part.numpy() for part in parts)
            for parts in zip(self.weights, self.exp_avg, self.exp_avg_sq, strict=True)
        ]
        self._columns = np.cumsum([0, *(weight.shape[1] for weight in weights)]).tolist()

    def update(self, ids: torch.Tensor, offsets: torch.Tensor, grad_BD: torch.Tensor) -> None:
        """One step.

        Args:
            ids: int64, feature by feature, bag by bag.
            offsets: (F * B + 1,) int64, where each bag begins in them.
            grad_BD: gradient of the sum of each bag, features side by side.
        """
        self.step += 1
        step_size = np.float32(self.learning_rate / (1 - BETA1**self.step))
        correction2 = np.float32((1 - BETA2**self.step) ** -0.5)
        ids, offsets, grad_BD = ids.numpy(), offsets.numpy(), grad_BD.contiguous().numpy()
        batch = len(grad_BD)

        def update(first: int, last: int) -> None:
            for f in range(first, last):
                bags = offsets[f * batch : (f + 1) * batch + 1]
                _adam_rows(
                    ids, bags, grad_BD, self._columns[f], self._slots[f], *self._arrays[f], step_size, correction2
                )

        split_range(len(self.weights), update)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight_RN, ids_FB, tables):
        ctx.ids_FB, ctx.tables = ids_FB, tables
        return torch.nn.functional.embedding((ids_FB + tables._first_row_F1).t(), weight_RN)  # (B, F, N)

    @staticmethod
    def backward(ctx, grad_BFN):
        ctx.tables._apply_gradient(ctx.ids_FB, grad_BFN.flatten(1))
        return None, None, None


class AdamTables(nn.Module):
    """Takes the place of an EmbeddingBagCollection whose bags hold one id each; trains itself in backward.

    Names and values of the parameters are those of the collection it is made from; `adam` is their optimizer.

    Args:
        shared: every rank of the default process group holds these tables, whole, and learns from the batches of all;
            gradients are averaged over the ranks, as DistributedDataParallel does.

    Raises:
        ValueError: tables of different dimensions, several features a table or tables a feature, weighted bags, or a
            table that is not to be trained.
    """

    def __init__(self, collection: EmbeddingBagCollection, shared: bool = False) -> None:
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
            # No gradient of its own: other optimizers and DistributedDataParallel leave it alone.
            self.embedding_bags[config.name].weight = nn.Parameter(view, requires_grad=False)
        self._weight_RN = weight_RN.requires_grad_()
        self.adam = RowAdam(list(weight_RN.detach().split(rows)))
        self._shared = shared
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
        out_BFN = _Lookup.apply(self._weight_RN, ids_FB, self)
        return KeyedTensor(self._keys, self._dims, out_BFN.flatten(1))

    def _apply_gradient(self, ids_FB: torch.Tensor, grad_BD: torch.Tensor) -> None:
        self._waits_for_backward = False
        if self._shared:
            ids, grads = zip(*of_all((ids_FB, grad_BD)), strict=True)
            ids_FB, grad_BD = torch.cat(ids, 1), torch.cat(grads) / len(grads)
        offsets = torch.arange(ids_FB.numel() + 1)
        self.adam.update(ids_FB.reshape(-1), offsets, grad_BD)


def use_adam_tables(model: nn.Module, shared: bool = False) -> list[AdamTables]:
    """Swap every EmbeddingBagCollection in the model for AdamTables, in place; returns them.

    Subclasses stay what they are: their own code would be lost.
    """
    made: dict[nn.Module, AdamTables] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is EmbeddingBagCollection:
                made[child] = made.get(child) or AdamTables(child, shared)
                setattr(parent, name, made[child])
    return list(made.values())
