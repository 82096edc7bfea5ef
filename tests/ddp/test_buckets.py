"""Which tensors share a bucket: PyTorch's tables, and PyTorch's own function on random ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.ddp.buckets import (
    MIB,
    UNBOUNDED,
    Bucket,
    compute_bucket_assignment_by_size,
    is_dense,
    size_limits,
)

assign = compute_bucket_assignment_by_size
torchs = dist._compute_bucket_assignment_by_size
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def empty(dtype, *counts):
    return [torch.empty(count, dtype=dtype) for count in counts]


def mib(*sizes):
    return [torch.empty(int(size * MIB) // 4, device="meta") for size in sizes]


TABLE = [  # tensors, limits, sparse, tensor_indices, buckets, their limits
    (empty(f32, 100, 200, 100, 50), [400], [], [], [[0], [1], [2], [3]], [400] * 4),
    (
        empty(f32, 50) + empty(f64, 25) + empty(f32, 50) + empty(f64, 25) + empty(f32, 50)
        + empty(f64, 25),
        [400], [], [], [[0, 2], [1, 3], [4], [5]], [400] * 4,
    ),
    (empty(f32, 10, 10, 10, 10), [40, 80], [], [], [[0], [1, 2], [3]], [40, 80, 80]),
    (
        (empty(f32, 50) + empty(f64, 25)) * 3,
        [200, 400], [], [], [[0], [1], [2, 4], [3, 5]], [200, 200, 400, 400],
    ),
    (empty(f32, 100, 100), [400], [], [], [[0], [1]], [400] * 2),
    (empty(f32, 99, 1, 1), [400], [], [], [[0, 1], [2]], [400] * 2),
    (empty(f32, 99, 1000, 1), [400], [], [], [[0, 1], [2]], [400] * 2),
    (empty(f32, 0, 0, 100, 0), [400], [], [], [[0, 1, 2], [3]], [400] * 2),
    (empty(f32, 0, 0), [400], [], [], [[0, 1]], [400]),
    (empty(f32, 1, 1), [0], [], [], [[0], [1]], [0, 0]),
    ([torch.empty(()), *empty(f32, 99, 1)], [400], [], [], [[0, 1], [2]], [400] * 2),
    (
        (empty(f16, 4) + empty(bf16, 4) + empty(f32, 2)) * 3,
        [8, 16], [], [],
        [[0], [1], [2], [3, 6], [4, 7], [5, 8]], [8] * 3 + [16] * 3,
    ),
    ([torch.empty(10, 10).t()[:5], *empty(f32, 50, 1)], [400], [], [], [[0, 1], [2]], [400] * 2),
    ([torch.empty(1).expand(100), *empty(f32, 1)], [400], [], [], [[0], [1]], [400] * 2),
    (
        mib(*[1] * 30), [MIB, 25 * MIB], [], [],
        [[0], [*range(1, 26)], [*range(26, 30)]], [MIB, 25 * MIB, 25 * MIB],
    ),
    (
        mib(0.5, 0.5, 30, 1, 24, 0.5), [MIB, 25 * MIB], [], [],
        [[0, 1], [2], [3, 4], [5]], [MIB] + [25 * MIB] * 3,
    ),
    (empty(f32, 10, 10, 10), [1000], [False, True, False], [], [[0, 2], [1]], [1000, 0]),
    (
        empty(f32, 10, 10, 10, 10), [80], [False, True, False, False], [],
        [[0, 2], [1], [3]], [80, 0, 80],
    ),
    (
        empty(f32, 10, 10, 10, 10), [40, 80], [], [3, 1, 2, 0],
        [[3], [1, 2], [0]], [40, 80, 80],
    ),
]  # fmt: skip


@pytest.mark.parametrize("tensors, limits, sparse, indices, buckets, their_limits", TABLE)
def test_the_table(tensors, limits, sparse, indices, buckets, their_limits):
    assert assign(tensors, limits, sparse, indices) == (buckets, their_limits)
    assert torchs(tensors, limits, sparse, indices) == (buckets, their_limits)


@settings(deadline=None)
@given(st.data())
def test_random_tensors(data):
    dtypes = data.draw(st.sampled_from([[f32], [f32, f64], [f16, bf16, f32, f64]]))
    kinds = st.tuples(st.sampled_from(dtypes), st.integers(0, 12), st.booleans())
    drawn = data.draw(st.lists(kinds, min_size=1, max_size=20))
    tensors = [torch.empty(count, dtype=dtype) for dtype, count, _ in drawn]
    sparse = data.draw(st.sampled_from([[], [is_sparse for *_, is_sparse in drawn]]))
    limits = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=4))
    assert assign(tensors, limits, sparse) == torchs(tensors, limits, sparse, [])
    order = data.draw(st.permutations(range(len(drawn))))
    in_order = [tensors[i] for i in order]
    ours, theirs = (fn(in_order, limits, sparse, order) for fn in (assign, torchs))
    if len(dtypes) <= 2:
        assert ours == theirs
    else:  # what is left over comes last in the order of a hash map, of which rank 0's counts
        assert sorted(zip(*ours, strict=True)) == sorted(zip(*theirs, strict=True))


@pytest.mark.parametrize(
    "tensors, limits", [([], [1]), (empty(f32, 1), []), ([torch.eye(2).to_sparse()], [1])]
)
def test_what_cannot_be_dealt(tensors, limits):
    """PyTorch's refuses the same, but for no limits, where it reads what is not there."""
    with pytest.raises(ValueError, match=r"at least one tensor and one size limit|dense tensors"):
        assign(tensors, limits)


def test_limits():
    """The small first bucket is there only if no cap is given, and not where order is unknown."""
    defaults = [MIB, 25 * MIB]
    assert size_limits(None, None, unordered=False) == (defaults, defaults)
    assert size_limits(None, None, unordered=True) == ([UNBOUNDED], defaults)
    assert size_limits(25, None, unordered=False) == ([25 * MIB], [25 * MIB])
    assert size_limits(0.001, None, unordered=True) == ([UNBOUNDED], [1048])
    assert size_limits(None, [1, 2.5], unordered=True) == ([MIB, 5 * MIB // 2],) * 2


# A bucket


def test_views_have_the_strides_of_their_parameters():
    parameters = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(5, 3).t(),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(4, 6)[:, ::2],  # with gaps: its gradient has none
    ]
    bucket = Bucket([7, 5, 3, 2, 1], parameters, sparse=False)
    assert bucket.flat.numel() == sum(p.numel() for p in parameters)
    bucket.flat.fill_(-1)
    for view, parameter in zip(bucket.views, parameters, strict=True):
        assert view.shape == parameter.shape and (view == -1).all()
        if is_dense(parameter):
            assert view.stride() == parameter.stride()
        view.copy_(parameter)
    for view, parameter in zip(bucket.views_of(bucket.flat.clone()), parameters, strict=True):
        assert torch.equal(view, parameter)  # no view lies over another
    assert [is_dense(p) for p in parameters] == [True] * 4 + [False]


def test_a_bucket_has_one_dtype():
    with pytest.raises(ValueError, match="one dtype and one device"):
        Bucket([0, 1], [torch.empty(1), torch.empty(1, dtype=f64)], sparse=False)


def test_zeros_of_a_sparse_bucket_add_up_with_the_gradient_of_an_embedding():
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 4])).sum().backward()
    zeros = Bucket([0], [table.weight], sparse=True).zeros()
    gradient = table.weight.grad
    assert (zeros.sparse_dim(), zeros.dense_dim()) == (gradient.sparse_dim(), gradient.dense_dim())
    assert torch.equal((zeros + gradient).to_dense(), gradient.to_dense())
