"""The settings of decoding: which search they choose. test_refusals.py has those that exclude each other."""

import pytest

from chatbot.config.chat import CHAT
from chatbot.config.decoding import DEFAULT_SEARCH, DecodingSettings, default_search, over_default
from chatbot.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "beams", "hypotheses"),
    [
        ("", 5, 5),
        ("--repetition-penalty 1.2 --n-best 5 --ban a b --stop c", 5, 5),
        ("--beam-size 1 --temperature 0.5", 1, 1),
        ("--top-p 0.9", 1, 1),
        ("--candidates 1", 1, 1),
        ("--candidates 20 --rerank 0.5 --n-best 20", 1, 20),
        ("--beam-size 6", 6, 6),
    ],
)
def test_flags_choose_the_search(arguments: str, beams: int, hypotheses: int) -> None:
    settings = over_default(CHAT.parse(arguments.split()).decoding, DEFAULT_SEARCH)
    assert (settings.beams, settings.hypotheses) == (beams, hypotheses)


def test_default_search_looks_up_training_pairs_where_there_are_any() -> None:
    alone, looked_up = default_search(retrieves=False), default_search(retrieves=True)
    assert (over_default(DecodingSettings(), alone).beams, over_default(DecodingSettings(), alone).retrieved) == (5, 0)
    default = over_default(DecodingSettings(), looked_up)
    assert (default.beams, default.retrieved, default.streams) == (5, 30, False)
    assert over_default(DecodingSettings(retrieve="none"), looked_up) == DecodingSettings(beam_size=5, retrieve="none")
    assert over_default(DecodingSettings(retrieve="4"), alone).retrieved == 4
    chosen = DecodingSettings(beam_size=1)
    assert over_default(chosen, looked_up) == chosen
    assert chosen.streams
    assert not DecodingSettings(beam_size=1, retrieve="2").streams


def test_default_search_is_checked_with_the_other_settings() -> None:
    with pytest.raises(
        UserError, match=r"^--n-best 6: the search yields at most 5; raise --beam-size or --candidates$"
    ):
        over_default(CHAT.parse(["--n-best", "6"]).decoding, DEFAULT_SEARCH)
    with pytest.raises(UserError, match=r"^--rerank: "):
        over_default(DecodingSettings(rerank=1.0), {"top_p": 0.8})
