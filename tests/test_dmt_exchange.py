"""The layouts of the paper's figures 7 and 8 and other facts of the exchange, read out of it while it runs.

V k stands for the embedding of sample k // 4 and feature k % 4, which is made to hold the number k.
"""

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan

from dmt import PassThrough, Topology, TowerEmbedding, TowerEmbeddingSharder

N = 4
FIGURE_7 = {
    "b": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "c": [[0, 8, 4, 12], [1, 9, 5, 13], [2, 10, 6, 14], [3, 11, 7, 15]],
    "d": [[0, 8, 1, 9], [4, 12, 5, 13], [2, 10, 3, 11], [6, 14, 7, 15]],
    "e": [[0, 1, 8, 9], [4, 5, 12, 13], [2, 3, 10, 11], [6, 7, 14, 15]],
    "f": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
}


def D(x, y):
    return 100 * x + y


FIGURE_8 = {
    "module": [[D(0, 1), D(8, 9)], [D(4, 5), D(12, 13)], [D(2, 3), D(10, 11)], [D(6, 7), D(14, 15)]],
    "f": [[D(0, 1), D(2, 3)], [D(4, 5), D(6, 7)], [D(8, 9), D(10, 11)], [D(12, 13), D(14, 15)]],
}


class Pair(nn.Module):
    """D of two features."""

    in_features, out_features = 2 * N, N

    def forward(self, x):
        return D(x[:, :N], x[:, N:])


def layouts(rank, module, permute):
    """What this rank holds after each step, one number an embedding."""
    tables = [EmbeddingBagConfig(name=f"t{f}", embedding_dim=N, num_embeddings=4, feature_names=[f"f{f}"])
              for f in range(4)]  # fmt: skip
    towers = TowerEmbedding(tables, ((0, 1), (2, 3)), [module() for _ in range(2)])
    sharder = TowerEmbeddingSharder(Topology(4, 2), permute=permute)
    plan = construct_module_sharding_plan(
        towers, {f"t{f}": table_wise(rank=f) for f in range(4)}, sharder, local_size=2, world_size=4, device_type="cpu"
    )
    model = DistributedModelParallel(towers, plan=ShardingPlan({"": plan}), sharders=[sharder])
    table = {f"embedding_bag_collection.embedding_bags.t{f}.weight":
             (4.0 * torch.arange(4) + f).unsqueeze(1).repeat(1, N) for f in range(4)}  # fmt: skip
    model.load_state_dict(table)

    held, sharded = {}, model.module

    def watch(owner, name, step):
        original = getattr(owner, name)

        def watched(*args):
            result = original(*args)
            if hasattr(result, "wait"):
                done = result.wait()
                result.wait = lambda: done
            held[step] = (done if hasattr(result, "wait") else result).flatten()[::N].tolist()
            return result

        setattr(owner, name, watched)

    watch(sharded, "compute", "b")
    watch(sharded.exchange, "permute", "c")
    watch(sharded.exchange, "inner_exchange", "d")
    watch(sharded.exchange, "local_shuffle", "e")
    sharded.tower_modules.register_forward_hook(lambda *call: held.update(module=call[2].flatten()[::N].tolist()))
    watch(sharded.exchange, "peer_exchange", "f")
    ids = KeyedJaggedTensor([f"f{f}" for f in range(4)], torch.tensor([rank] * 4), lengths=torch.ones(4).int())
    out = model(ids).values().flatten()[::N].tolist()
    assert out == held["f"]
    return held


@pytest.mark.parametrize("permute", ["embeddings", "indices", "none"])
def test_every_layout_of_figure_7(permute):
    found = on_ranks(4, layouts, pass_through, permute)
    for step in "bcdef":
        for rank in range(4):
            if permute == "embeddings":
                assert found[rank][step] == FIGURE_7[step][rank]
            elif step == "b":  # the lookup gives peer order already
                assert found[rank]["b"] == FIGURE_7["c"][rank]
            elif step == "c":
                assert "c" not in found[rank]
            else:
                assert found[rank][step] == FIGURE_7[step][rank]


def pass_through():
    return PassThrough(2 * N)


@pytest.mark.parametrize("permute", ["embeddings", "indices", "none"])
def test_the_layouts_of_figure_8(permute):
    found = on_ranks(4, layouts, Pair, permute)
    for rank in range(4):
        assert found[rank]["e"] == FIGURE_7["e"][rank]
        assert found[rank]["module"] == FIGURE_8["module"][rank]
        assert found[rank]["f"] == FIGURE_8["f"][rank]
