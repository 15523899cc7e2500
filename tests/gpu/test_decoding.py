"""Replies on a stand-in GPU: how often the host waits for it."""

from pathlib import Path

import pytest

from chatbot.inference.responder import CHECK_INTERVAL_ON_GPU
from tests.gpu import decoding
from tests.gpu.decoding import LENGTHS
from tests.gpu.process import on_standins

pytestmark = pytest.mark.gpu


def test_a_search_waits_once_for_several_tokens_and_a_token_for_the_host_is_one_copy(tmp_path: Path) -> None:
    """A search also waits once at its beginning at most, and for the ids and the scores."""
    searches, by_token = (
        {name: [of_length.device_to_host for of_length in counts] for name, counts in found.items()}
        for found in on_standins(decoding.all_counts, tmp_path)
    )
    fewer, more = (-(-length // CHECK_INTERVAL_ON_GPU) for length in LENGTHS)
    assert {name: copies[1] - copies[0] for name, copies in searches.items()} == dict.fromkeys(searches, more - fewer)
    assert all(copies[0] <= fewer + 3 for copies in searches.values()), searches
    assert by_token == {"stream": list(LENGTHS), "engine": list(LENGTHS), "attention": [1, 1]}
