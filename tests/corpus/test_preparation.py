"""Filters of single pairs: each applies to the question and to the answer. Dropped pairs are not counted."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.dataset import training_set
from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, RESUMED
from chatbot.corpus.reading.report import Report

KEPT = ("一二", "三四")


def kept(
    pairs: list[tuple[str, str]], settings: CorpusSettings, first: int = 1, report: Report | None = None
) -> list[tuple[str, str]]:
    """The cleaned pairs that are kept."""
    separate = ((question, answer, NEW) for question, answer in pairs)
    return [(question, answer) for question, answer, _ in clean_pairs(separate, first, report or Report(), settings)]


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        ({}, [("", "一"), ("一", ""), (" ", "一")]),
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


SHORT = st.text("好坏a\u2581 ", max_size=6)


@given(words=st.lists(SHORT, max_size=6), text=SHORT)
def test_block_list_finds_words_anywhere_as_written_and_as_cleaned(
    words: list[str], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "words.txt"
    path.write_text("\n".join(words), encoding="utf-8")
    settings = CorpusSettings(block_list=str(path), clean=("none",))
    blocked = {form for word in words for form in (word.strip(), tidy(word))} - {""}
    cleaned = tidy(text)
    assert bool(kept([(text, "答")], settings)) == (cleaned != "" and not any(word in cleaned for word in blocked))


def test_time_does_not_depend_on_the_number_of_blocked_words(tmp_path: Path) -> None:
    """Lists have 20,000 words, a few of them in the text in part."""
    pairs = [("天地玄黄宇宙洪荒" * 2, "日月盈昃辰宿列张" * 2, NEW)] * 2000

    def seconds(words: int) -> float:
        path = tmp_path / f"{words}.txt"
        path.write_text("\n".join(f"宇宙{chr(0x4E00 + i)}{i}\n{chr(0x4E00 + i)}坏" for i in range(words // 2)))
        settings = CorpusSettings(block_list=str(path))
        times = []
        for _ in range(4):  # the first one prepares the words
            start = time.process_time()
            assert len(list(clean_pairs(pairs, 1, Report(), settings))) == len(pairs)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(20_000) < 20 * seconds(2)  # about 2; a search for each word takes 100 times and more


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


@given(st.lists(st.tuples(st.sampled_from([NEW, OVERLAP, NEXT]), st.booleans()), max_size=12))
def test_conversations_outlast_dropped_pairs(pairs: list[tuple[int, bool]]) -> None:
    """Pairs that are cleaned away leave RESUMED behind them, unless a conversation begins there."""
    texts = [(f"q{i}", "a" if is_clean else "", link) for i, (link, is_clean) in enumerate(pairs)]
    expected, previous = [], -1
    for i, (link, is_clean) in enumerate(pairs):
        if is_clean:
            begins = previous < 0 or NEW in [link for link, _ in pairs[previous + 1 : i + 1]]
            expected.append((f"q{i}", "a", NEW if begins else link if previous == i - 1 else RESUMED))
            previous = i
    assert list(clean_pairs(texts, 1, Report(), CorpusSettings())) == expected
