"""The most tokens of a share, and the logits that follow from the memory of the devices."""

import hypothesis.strategies as st
from hypothesis import given, settings

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import Batches, split
from chatbot.flags import compose
from chatbot.model.fast.projection import LOGITS
from chatbot.model.packing import packing_of
from chatbot.training.devices import Tower
from chatbot.training.loss_size import loss_size, most_tokens
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


def test_smallest_memory_sets_the_logits() -> None:
    chosen = compose(Settings)
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "", memory << 30) for i, memory in enumerate((80, 16))]
    assert LOGITS < loss_size(chosen, towers).logits < loss_size(chosen, towers[:1]).logits
    assert loss_size(chosen, [Tower("cpu_0", "/CPU:0", "", None)]).logits == LOGITS
    assert loss_size(chosen, towers, machines=4).most_tokens < loss_size(chosen, towers).most_tokens  # type: ignore[operator]
