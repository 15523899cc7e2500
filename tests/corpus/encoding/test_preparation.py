"""Filters of single pairs: each applies to the question and to the answer. Dropped pairs are not counted."""

from typing import Any

import pytest

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.encoding.preparation import clean_pairs, preparation
from chatbot.corpus.reading.pair import NEW
from chatbot.corpus.reading.report import Report
from chatbot.corpus.training_set import training_set

KEPT = ("一二", "三四")


def kept(
    pairs: list[tuple[str, str]], settings: CorpusSettings, first: int = 1, report: Report | None = None
) -> list[tuple[str, str]]:
    """The cleaned pairs that are kept."""
    separate = ((question, answer, NEW) for question, answer in pairs)
    cleaned = clean_pairs(separate, first, report or Report(), preparation(settings))
    return [(pair[0], pair[1]) for pair, _ in cleaned]


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        ({}, [("", "一"), ("一", ""), (" ", "一")]),
        ({"min_characters": 2}, [("一", "二三"), ("一二", "三"), ("一 ", "二三")]),
        ({"max_characters": 2}, [("一二三", "四"), ("一", "二三四")]),
        ({"clean": ("equal",)}, [("一二", "一二")]),
        ({"block_list": "blocked.txt"}, [("坏一", "二"), ("一", "二坏")]),
    ],
)
def test_filter_applies_to_both_sides(work_dir: Any, flags: dict[str, Any], dropped: list[tuple[str, str]]) -> None:
    (work_dir / "blocked.txt").write_text("坏\n")
    report = Report("a.tsv")
    pairs = [KEPT, *dropped, KEPT]
    assert kept(pairs, CorpusSettings(**flags), 11, report) == [KEPT, KEPT]
    ((reason, entry),) = report.dropped.items()
    assert entry.count == len(dropped)
    assert report.lines() == [f"{reason}: {len(dropped)} (first: a.tsv, pair 12)"]


def test_limits_are_inclusive_and_spaces_do_not_count() -> None:
    settings = CorpusSettings(min_characters=2, max_characters=3, clean=("none",))
    pairs = [("一二", "一二三"), ("a b c", "a  bc")]
    assert len(kept(pairs, settings)) == 2
    assert not kept([("a b c d", "二三")], settings)


def test_words_of_dropped_pairs_do_not_enter_the_vocabulary(work_dir: Any) -> None:
    """Words that occur once are spelled, and duplicates count once."""
    (work_dir / "pairs.tsv").write_text("天安门\t好\n" * 3 + "你好\t你好呀\n")
    encoding = EncodingSettings(validation="none")
    once, thrice = (
        training_set(CorpusSettings(data=("pairs.tsv",), clean=(rule,)), encoding).vocabulary.tokens
        for rule in ("duplicates", "none")
    )
    assert "天安门" not in once
    assert "天安门" in thrice
