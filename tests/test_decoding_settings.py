"""The settings of decoding: which search they choose, and which exclude each other."""

from typing import Any

import pytest

from chatbot.config.chat import chat_settings
from chatbot.config.decoding import MEMORISED, SAMPLED, DecodingSettings, default_search, over_default
from chatbot.config.evaluation import evaluation_settings
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
    settings = over_default(chat_settings(arguments.split()).decoding, MEMORISED)
    assert (settings.beams, settings.hypotheses) == (beams, hypotheses)


def test_default_search_follows_what_was_learned() -> None:
    """Pairs that were learned by heart have one right reply; other replies are varied."""
    assert over_default(DecodingSettings(), default_search(False, True)).beams == 5
    sampled = DecodingSettings(top_p=0.8, anti_lm=0.1, seed=2)
    assert over_default(DecodingSettings(seed=2), default_search(True, False)) == sampled
    assert over_default(DecodingSettings(anti_lm=0.0), default_search(True, False)).anti_lm == 0.0
    best = over_default(DecodingSettings(), default_search(True, True))
    assert (best.hypotheses, best.top_p, best.rerank) == (30, 0.8, 8.0)
    weighted = over_default(DecodingSettings(rerank=2.0), default_search(True, True))
    assert (weighted.hypotheses, weighted.rerank) == (30, 2.0)
    unranked = over_default(DecodingSettings(rerank=0.0), default_search(True, True))
    assert (unranked.hypotheses, unranked.rerank) == (30, 0.0)  # 0 is a value, not the default
    assert over_default(DecodingSettings(coverage_penalty=1.0), default_search(True, True)).beams == 5


def test_evaluation_takes_the_same_flags() -> None:
    decoding = evaluation_settings(["--data", "x", "--ban", "a", "b", "--top-k", "4"]).decoding
    assert decoding == DecodingSettings(ban=("a", "b"), top_k=4)


def test_default_search_is_checked_with_the_other_settings() -> None:
    with pytest.raises(
        UserError, match=r"^--n-best 6: the search yields at most 5; raise --beam-size or --candidates$"
    ):
        over_default(chat_settings(["--n-best", "6"]).decoding, MEMORISED)
    with pytest.raises(UserError, match=r"^--rerank: "):
        over_default(DecodingSettings(rerank=1.0), SAMPLED)


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
