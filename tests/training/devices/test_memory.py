"""The most tokens of a share, and the logits that follow from the memory of the devices."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, split
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.model.loss import LOGITS, MOST_ELEMENTS, LossSize, logits_in
from chatbot.model.sequences import packing_of
from chatbot.training.devices.memory import loss_size, most_tokens
from chatbot.training.devices.towers import Tower
from chatbot.training.selftest import random_pairs


@settings(max_examples=40)
@given(
    size=st.integers(1, 40),
    by_tokens=st.booleans(),
    accumulate=st.integers(1, 3),
    towers=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_no_piece_of_a_share_has_more_tokens(
    size: int, by_tokens: bool, accumulate: int, towers: int, seed: int
) -> None:
    """Random pairs have at most 8 tokens and the end symbol."""
    of_batch = {"batch_tokens": 9 * size} if by_tokens else {"batch_size": size}
    chosen = compose(Settings, max_length=9, accumulate=accumulate, **of_batch)
    tokens = 9 * size * accumulate if by_tokens else None
    batches = Batches([random_pairs(100, seed)], size * accumulate, seed, tokens)
    most = most_tokens(chosen, towers)
    steps = batches.from_step(0, towers)
    for _ in range(batches.steps_per_epoch):
        for share in next(steps).shares:
            for piece in split(share, accumulate):
                lengths = (piece.target_in != 0).sum(axis=1)
                assert len(packing_of(lengths, piece.target_in.shape[1]).to_packed) <= most


@given(
    memory=st.one_of(st.none(), st.integers(0, 1 << 42)),
    vocabulary=st.integers(10, 1 << 22),
    units=st.integers(1, 1 << 14),
)
def test_no_call_has_more_logits_than_32_bits_can_index(memory: int | None, vocabulary: int, units: int) -> None:
    """The vocabulary has all columns of the projection; chunks with n-grams or validation have `logits` at most."""
    size = LossSize(logits_in(memory))
    tokens = size.chunk_tokens(vocabulary, units)
    assert size.logits < 1 << 31
    assert 1 <= tokens * vocabulary < 1 << 31
    assert tokens >= min(units, size.logits // vocabulary)


def test_logits_of_a_gpu_with_143_gb_are_bounded() -> None:
    """A fifteenth of its memory would hold 2,512,580,334 logits."""
    assert loss_size(compose(Settings), [Tower("gpu_0", "/GPU:0", "", 150_754_820_096)]).logits == MOST_ELEMENTS


def test_logits_of_a_sampled_softmax_are_checked() -> None:
    exact, few, many = (
        compose(Settings, batch_size=64, max_length=10, sampled_softmax=samples)
        for samples in (None, 2**31 // 700, 2**31 // 600)
    )
    tower = Tower("cpu_0", "/CPU:0", "", None)
    assert 600 < most_tokens(exact, 1) < 700
    for chosen in (exact, few):
        loss_size(chosen, [tower])
    with pytest.raises(UserError, match=r"^--sampled-softmax: 2,.* logits of a tower's share at once, more") as raised:
        loss_size(many, [tower])
    assert len(str(raised.value)) < 200


def test_smallest_memory_sets_the_logits() -> None:
    chosen = compose(Settings)
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "", memory << 30) for i, memory in enumerate((80, 16))]
    assert LOGITS < loss_size(chosen, towers).logits < loss_size(chosen, towers[:1]).logits
    assert loss_size(chosen, [Tower("cpu_0", "/CPU:0", "", None)]).logits == LOGITS
    assert loss_size(chosen, towers, machines=4).most_tokens < loss_size(chosen, towers).most_tokens  # type: ignore[operator]
