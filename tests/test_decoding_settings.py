"""The settings of decoding: which search they choose, and which exclude each other."""

from typing import Any

import pytest

from chatbot.config.chat import CHAT
from chatbot.config.decoding import DEFAULT_SEARCH, DecodingSettings, default_search, over_default
from chatbot.config.evaluation import EVALUATE
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
        ("--beam-size 6 --diverse-groups 3", 6, 6),
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


@pytest.mark.parametrize("value", ["0", "-1", "1001", "1.5", "some", "³"])
def test_retrieve_takes_a_number_or_a_word(value: str) -> None:
    with pytest.raises(UserError, match=r"^--retrieve .*: give auto, none, or a number from 1 to 1,000$"):
        DecodingSettings(retrieve=value)


def test_evaluation_takes_the_same_flags() -> None:
    decoding = EVALUATE.parse(["--data", "x", "--ban", "a", "b", "--top-k", "4"]).decoding
    assert decoding == DecodingSettings(ban=("a", "b"), top_k=4)


def test_default_search_is_checked_with_the_other_settings() -> None:
    with pytest.raises(
        UserError, match=r"^--n-best 6: the search yields at most 5; raise --beam-size or --candidates$"
    ):
        over_default(CHAT.parse(["--n-best", "6"]).decoding, DEFAULT_SEARCH)
    with pytest.raises(UserError, match=r"^--rerank: "):
        over_default(DecodingSettings(rerank=1.0), {"top_p": 0.8})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "--temperature 0: must be above 0; for greedy search, set --beam-size 1"),
        ({"temperature": float("nan")}, "--temperature nan: expected a finite number"),
        ({"top_k": 0}, "--top-k 0: must be at least 1"),
        ({"top_p": 0.0}, "--top-p 0.0: must be above 0"),
        ({"top_p": 1.01}, "--top-p 1.01: must be at most 1"),
        ({"min_p": 2}, "--min-p 2: must be at most 1"),
        ({"typical": -1}, "--typical -1: must be above 0"),
        ({"repetition_penalty": 0.5}, "--repetition-penalty 0.5: must be at least 1"),
        ({"frequency_penalty": -101}, "--frequency-penalty -101: must be at least -100"),
        ({"length_penalty": 11}, "--length-penalty 11: must be at most 10"),
        ({"coverage_penalty": -0.1}, "--coverage-penalty -0.1: must be at least 0"),
        ({"no_repeat_ngram": -1}, "--no-repeat-ngram -1: must be at least 0"),
        ({"min_reply_length": 0}, "--min-reply-length 0: must be at least 1"),
        ({"anti_lm": -1}, "--anti-lm -1: must be at least 0"),
        ({"fallback": "?"}, "--fallback: not used without --min-score; leave it out, or add that"),
        ({"min_score": 1001}, "--min-score 1001: must be at most 1000"),
        ({"min_score": 1.0, "fallback": " "}, "--fallback: a reply without visible characters; give a text"),
        ({"min_score": 1.0, "beam_size": 1}, "--min-score: a single reply is compared with none; add --beam-size, "),
        ({"min_score": 1.0, "top_p": 0.5}, "--min-score: a single reply is compared with none; add --beam-size, "),
        ({"anti_lm_tokens": 0}, "--anti-lm-tokens 0: must be at least 1"),
        ({"rerank": -1}, "--rerank -1: must be at least 0"),
        ({"candidates": 1001}, "--candidates 1001: must be at most 1000"),
        ({"seed": -1}, "--seed -1: must be at least 0"),
        ({"stop": ("a\n",)}, "--stop 'a\\n': expected printable text"),
        ({"stop": ("a", "b" * 101)}, "--stop: a text has 101 characters; give texts of at most 100"),
        ({"beam_size": 2, "top_p": 0.5}, "--beam-size 2 and --top-p: beam search does not sample; give one"),
        ({"beam_size": 2, "candidates": 3}, "--beam-size 2 and --candidates: beam search does not sample; give one"),
        ({"top_k": 3, "coverage_penalty": 1}, "--coverage-penalty: for beam search; add --beam-size with at least 2"),
        ({"beam_size": 1, "diverse_groups": 2}, "--diverse-groups: for beam search; add --beam-size with at least 2"),
        ({"beam_size": 5, "diverse_groups": 2}, "--diverse-groups 2: must divide --beam-size, which is 5; all groups"),
        ({"beam_size": 4, "diversity": 1.0}, "--diversity: not used without --diverse-groups; leave it out, or add"),
        ({"anti_lm_tokens": 3}, "--anti-lm-tokens: not used without --anti-lm; leave it out, or add that"),
        ({"candidates": 3, "n_best": 4}, "--n-best 4: the search yields at most 3; raise --beam-size or --candidates"),
        (
            {"top_k": 3, "rerank": 1},
            "--rerank: there is one reply and nothing to rank; add --beam-size or --candidates",
        ),
    ],
)
def test_settings_out_of_range_or_that_exclude_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        DecodingSettings(**settings)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
