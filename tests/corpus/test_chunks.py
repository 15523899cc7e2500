"""Chunks: the filters of single pairs, whose dropped pairs are counted, and conversations that stay whole."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus import files as files_module
from chatbot.corpus.chunks import clean_pairs, load_chunk
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.files import corpus_files, tokenise
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP, RESUMED
from tests.corpus.encoded import PAIRS, encoded_corpus, settings
from tests.corpus.reading.sample_files import conversations, written
from tests.pace import cost


def kept(
    pairs: list[tuple[str, str]], settings: CorpusSettings, first: int = 1, report: Report | None = None
) -> list[tuple[str, str]]:
    """The cleaned pairs that are kept."""
    separate = ((question, answer, NEW) for question, answer in pairs)
    return [(question, answer) for question, answer, _ in clean_pairs(separate, first, report or Report(), settings)]


@pytest.mark.parametrize(
    ("blocked", "dropped"),
    [(None, [("", "一"), ("一", ""), (" ", "一")]), ("blocked.txt", [("坏一", "二"), ("一", "二坏")])],
)
def test_filter_applies_to_both_sides(work_dir: Path, blocked: str | None, dropped: list[tuple[str, str]]) -> None:
    (work_dir / "blocked.txt").write_text("坏\n")
    report, good = Report("a.tsv"), ("一二", "三四")
    assert kept([good, *dropped, good], CorpusSettings(block_list=blocked), 11, report) == [good, good]
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

    def cost_with(words: int) -> float:
        path = tmp_path / f"{words}.txt"
        path.write_text("\n".join(f"宇宙{chr(0x4E00 + i)}{i}\n{chr(0x4E00 + i)}坏" for i in range(words // 2)))
        settings = CorpusSettings(block_list=str(path))

        def clean() -> None:
            assert len(list(clean_pairs(pairs, 1, Report(), settings))) == len(pairs)

        return cost(clean, repeats=4)  # the first one prepares the words

    assert cost_with(20_000) < 20 * cost_with(2)  # about 2; a search for each word takes 100 times and more


def test_words_of_dropped_pairs_do_not_enter_the_vocabulary(tmp_path: Path) -> None:
    """Words that occur once are spelled, and duplicates count once."""
    pairs = [("天安门", "好")] * 3 + PAIRS[:1]
    once, thrice = (
        encoded_corpus(settings(tmp_path, pairs, clean=(rule,))).vocabulary.tokens for rule in ("duplicates", "none")
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


def chunks_of(folder: Path, turns: list[list[str]]) -> tuple[list[list[str]], list[int]]:
    """The conversations of all chunks of a file with these, of which one is in each; and the pairs of each chunk."""
    content = "".join("E\n" + "".join(f"M {turn}\n" for turn in talk) for talk in turns)
    path = written(folder, "a.conv", content)
    settings = CorpusSettings(data=(str(path),), tokenizer="char", cache=str(folder / "cache"))
    found = []
    chunks = tokenise(corpus_files(find_sources(settings.data), settings)).chunks
    for name, _, pairs in chunks:
        chunk = load_chunk(name)
        texts = zip(chunk.texts(np.arange(pairs)), chunk.links.tolist(), strict=True)
        found += conversations((*text, link) for text, link in texts)
    return found, [chunk.pairs for chunk in chunks]


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_chunks_keep_whole_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """But for one that is longer than two chunks."""
    monkeypatch.setattr(files_module, "PAIRS_PER_CHUNK", most)
    turns = [[f"{talk} {turn}" for turn in range(2 + talk % (most + 1))] for talk in range(30)]
    found, pairs = chunks_of(tmp_path, turns)
    assert found == turns
    assert max(pairs) < 2 * most + 1
    found, pairs = chunks_of(tmp_path, [[str(turn) for turn in range(5 * most)]])
    assert pairs == [2 * most, 2 * most, most - 1][: 3 if most > 1 else 2]
    assert [talk[0] for talk in found] == [str(2 * most * n) for n in range(len(pairs))]
