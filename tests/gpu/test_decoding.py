"""Replies on a stand-in GPU: how often the host waits for it."""

from pathlib import Path

import pytest

from chatbot.inference.reply_search import CHECK_INTERVAL_ON_GPU
from tests.gpu import decoding
from tests.gpu.decoding import LENGTHS
from tests.gpu.process import on_standins

pytestmark = pytest.mark.gpu


def test_a_search_waits_once_for_several_tokens(tmp_path: Path) -> None:
    """Once more at its beginning, and for the ids and the scores."""
    for name, counts in on_standins(decoding.searches, tmp_path).items():
        checks = [-(-length // CHECK_INTERVAL_ON_GPU) for length in LENGTHS]
        copies = [of_length.device_to_host for of_length in counts]
        assert copies[1] - copies[0] == checks[1] - checks[0], (name, copies)
        assert copies[0] <= checks[0] + 3, (name, copies)


def test_a_token_that_the_host_needs_is_one_copy(tmp_path: Path) -> None:
    found = on_standins(decoding.one_by_one, tmp_path)
    copies = {name: [of_length.device_to_host for of_length in counts] for name, counts in found.items()}
    assert copies == {"stream": list(LENGTHS), "engine": list(LENGTHS), "attention": [1, 1]}
