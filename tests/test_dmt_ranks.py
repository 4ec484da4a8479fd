"""A sharded tower model equals the same model on one device: outputs, input gradients, updates of every parameter.

Both sides compute in fp32 and differ in the order of sums only: TOLERANCE is absolute, for numbers of about 1.
"""

from hypothesis import given, settings
from ranks import on_ranks
from tower_case import Case, apart, batch, build, cases, joined, optimizers, shard

TOLERANCE = 2e-6


def train(rank: int, case: Case) -> tuple[dict[str, float], set[str]]:
    """Trains both for case.batches; the largest difference of each kind, and the names that the rank's state has."""
    model = build(case)
    sharded, worst = shard(case, model), {"output": 0.0, "input gradient": 0.0}
    ours, theirs = optimizers(sharded), optimizers(model)
    for step, samples in enumerate(case.batches):
        parts = batch(case, step)
        ours.zero_grad()
        theirs.zero_grad()
        # a rank's loss is its share of the mean over the global batch, times G since gradients are averaged
        dense, sparse, labels = parts[rank]
        dense.requires_grad_()
        output = sharded(dense, sparse)
        (((output - labels) ** 2).sum() * len(samples) / sum(samples)).backward()
        ours.step()

        all_dense, all_sparse, all_labels = joined([(d.detach(), s, y) for d, s, y in parts])
        all_dense.requires_grad_()
        expected = model(all_dense, all_sparse)
        ((expected - all_labels) ** 2).mean().backward()
        theirs.step()
        here = slice(sum(samples[:rank]), sum(samples[: rank + 1]))
        if samples[rank]:
            worst["output"] = max(worst["output"], (output - expected[here]).abs().max().item())
            difference = dense.grad / len(samples) - all_dense.grad[here]
            worst["input gradient"] = max(worst["input gradient"], difference.abs().max().item())
    state, full = sharded.state_dict(), model.state_dict()
    worst |= {name: apart(full[name], found) for name, found in state.items()}
    return worst, set(state), set(full)


@settings(max_examples=40)
@given(cases())
def test_training_equals_one_device(case):
    found = on_ranks(case.shape[0], train, case)
    for worst, *_ in found:
        assert max(worst.values()) <= TOLERANCE, worst
    assert set().union(*(names for _, names, _ in found)) == found[0][2]  # together the ranks have every name
