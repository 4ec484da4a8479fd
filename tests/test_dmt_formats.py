"""Number formats on the wire: rows that share a scale, the format of each exchange and way, a group of one rank."""

import dataclasses
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_dmt_sharding import MIXED, outputs
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig
from tower_case import batch, build, shard

from bench.traffic import Traffic
from dmt.alltoall import AllToAll

FP8 = {"forward_precision": CommType.FP8, "backward_precision": CommType.FP8}
MX4 = {"forward_precision": CommType.MX4, "backward_precision": CommType.MX4}


def outputs_in_rows(rank, case):
    """FBGEMM has FP8 in rows for GPUs alone: here its 8-bit integers, in rows of the same bytes, stand in for it."""
    fbgemm = torch.ops.fbgemm
    with (
        mock.patch.object(
            fbgemm, "FloatToFP8RowwiseQuantized", lambda x, _: fbgemm.FloatToFused8BitRowwiseQuantized(x)
        ),
        mock.patch.object(
            fbgemm, "FP8RowwiseQuantizedToFloat", lambda x, *_: fbgemm.Fused8BitRowwiseQuantizedToFloat(x)
        ),
    ):
        return outputs(rank, case)


@pytest.mark.parametrize(
    ("config", "relative", "step"),
    [  # measured: 0.007 of the outputs and 1.3e-4 in a table; 0.07 and 5.6e-3
        (FP8 | {"fp8_quantize_dim": 20, "fp8_quantize_dim_bwd": 28}, 0.02, 5e-4),
        (MX4 | {"mx4_quantize_dim": 64, "mx4_quantize_dim_bwd": 16}, 0.2, 2e-2),
    ],
    ids=["fp8", "mx4"],
)
def test_rows_of_any_size_share_a_scale_and_parts_need_not_be_whole_rows(config, relative, step):
    exact = on_ranks(4, outputs, MIXED)
    both = {"inside": QCommsConfig(**config), "peer": QCommsConfig(**config)}
    packed = on_ranks(4, outputs_in_rows, dataclasses.replace(MIXED, sharder=both))
    for (out, tables), (out_packed, tables_packed) in zip(exact, packed, strict=True):
        assert (out - out_packed).abs().max() <= relative * out.abs().max()
        for name, table in tables.items():
            torch.testing.assert_close(tables_packed[name], table, rtol=0, atol=step)


def sent(rank, sharder):
    """(group, dtype, bytes) of each AlltoAll inside the tower and between peers, forward and backward, in order."""
    case = dataclasses.replace(MIXED, sharder=sharder)
    model = shard(case, build(case))
    dense, sparse, labels = batch(case, 0)[rank]
    with Traffic(ranks_per_host=2) as traffic:
        ((model(dense, sparse) - labels) ** 2).sum().backward()
    pairs = [call for call in traffic.calls if call.kind == "all_to_all" and len(call.group) == 2]  # indices go to 4
    return [(call.group, call.dtype, call.sent.inside + call.sent.across) for call in pairs]


def test_each_exchange_has_its_own_format_on_each_way():
    formats = {
        "inside": QCommsConfig(CommType.FP16, CommType.BF16),
        "peer": QCommsConfig(CommType.INT8, CommType.FP32),
    }
    exact, packed = on_ranks(4, sent, {}), on_ranks(4, sent, formats)
    for rank in range(4):
        tower, peers = (rank - rank % 2, rank - rank % 2 + 1), (rank % 2, rank % 2 + 2)
        (_, _, d), (_, _, f), (_, _, f_back), (_, _, d_back) = exact[rank]
        assert packed[rank] == [
            (tower, torch.float16, d // 2),
            (peers, torch.uint8, -(-f // 4 // 32) * (32 + 8)),  # rows of 32, each with its scale and shift
            (peers, torch.float32, f_back),
            (tower, torch.bfloat16, d_back // 2),
        ]


def alone(rank):
    sends = torch.arange(3.0, requires_grad=True)
    gradient = torch.full((3,), 8.0)
    AllToAll(sends, [3], [3], dist.group.WORLD, divide_gradient=4).wait().backward(gradient)
    return gradient, sends.grad


def test_a_group_of_one_rank_divides_the_gradient_and_leaves_the_one_it_was_given():
    given, found = on_ranks(1, alone)[0]
    assert torch.equal(given, torch.full((3,), 8.0))
    assert torch.equal(found, torch.full((3,), 2.0))
