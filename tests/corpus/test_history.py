"""Sources with the turns before the question: which turns, in which order, and what is left out."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import EncodeSettings
from chatbot.corpus import selection
from chatbot.corpus.dataset import Corpus, training_set, validation_set
from chatbot.corpus.history import questions_alone, turn_rows, turns_that_fit
from chatbot.corpus.pair_ids import Ragged, lengths_of
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP, RESUMED
from chatbot.corpus.shards import Shards
from chatbot.corpus.vocabulary import ASK, BYTES, MARKS, SPECIALS, Vocabulary, source_of
from chatbot.decoding.automaton import spelling_automaton
from chatbot.flags import compose, replace

TALK = ["甲甲", "乙乙", "丙丙", "丁丁", "戊戊"]
NAMES = dict(zip(MARKS, "<>", strict=True))  # "<": the other speaker, ">": the one who replies


def settings(folder: Path, talks: list[Any], **changes: Any) -> EncodeSettings:
    """Settings for a file of these conversations, one on each line."""
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps(talk, ensure_ascii=False) + "\n" for talk in talks), encoding="utf-8")
    values = {"tokenizer": "char", "validation": "none", "cache": str(folder / "cache"), **changes}
    return compose(EncodeSettings, data=(str(path),), **values)


def encoded(chosen: EncodeSettings, max_length: int = sys.maxsize) -> Corpus:
    """The corpus as training reads it."""
    return training_set(chosen.corpus, chosen.encoding, None, max_length)


def texts(corpus: Corpus, shards: Shards | None = None) -> list[tuple[str, str]]:
    """The sources, with "<" and ">" in place of the marks, and the targets, shard after shard."""

    def text(side: Ragged, row: int) -> str:
        return "".join(NAMES.get(token, token) for token in corpus.vocabulary.tokens_of(side.row(row).tolist()))

    return [
        (text(pairs.sources, row), text(pairs.targets, row))
        for pairs in shards or corpus.shards
        for row in range(len(pairs))
    ]


def test_oldest_turns_are_left_out_until_the_others_fit(tmp_path: Path) -> None:
    talks = [["甲", "乙乙", "丙丙丙", "丁"], ["长" * 8, "短"], ["甲丁短", "短丁甲"]]  # no character occurs once
    chosen = settings(tmp_path, talks, history=3)
    answers = ["乙乙", "丙丙丙", "丁", "短", "短丁甲"]
    for max_length, sources in (
        (9, ["<甲", ">甲<乙乙", "<甲>乙乙<丙丙丙", "<" + "长" * 8, "<甲丁短"]),
        (8, ["<甲", ">甲<乙乙", ">乙乙<丙丙丙", "<" + "长" * 8, "<甲丁短"]),
        (4, ["<甲", "<乙乙", "<丙丙丙", "<" + "长" * 8, "<甲丁短"]),
    ):
        corpus = encoded(chosen, max_length)
        assert texts(corpus) == list(zip(sources, answers, strict=True))
        assert corpus.shards[0].characters.tolist() == [*map(len, answers)]
        trained = dataclasses.replace(corpus.shards, max_length=max_length)
        assert [source for source, _ in texts(corpus, trained)] == [s for s in sources if len(s) <= max_length]
        assert trained.lengths.pairs == sum(len(source) <= max_length for source in sources)


def test_reverse_pair_has_no_history(tmp_path: Path) -> None:
    corpus = encoded(settings(tmp_path, [TALK], history=2), 50)
    both = dataclasses.replace(corpus.shards, max_length=50, both_directions=True)
    backwards = [row for row, begin in enumerate(both[0].begins.tolist()) if begin == ASK]
    assert [texts(corpus, both)[row] for row in backwards] == list(zip(TALK[1:], TALK, strict=False))
    assert [x.tolist() for x in vars(both.lengths).values()] == [x.tolist() for x in vars(lengths_of(both)).values()]


LINKS = st.lists(st.sampled_from([NEW, OVERLAP, NEXT, RESUMED]), max_size=20)


@given(LINKS, st.integers(0, 6))
def test_turns_before_a_question_equal_a_slow_loop(links: list[int], turns: int) -> None:
    links = [RESUMED if i == 0 and link != NEW else link for i, link in enumerate(links)]
    expected: list[list[int]] = []
    for pair, link in enumerate(links):
        before = expected[-1] if link in (OVERLAP, NEXT) else []
        if link == OVERLAP:  # the question is the answer of the previous pair
            before = [*before[:-1], 2 * pair - 2]
        elif link == NEXT:
            before = [*before[:-1], 2 * pair - 2, 2 * pair - 1]
        expected.append([*before, 2 * pair])
    rows = turn_rows(np.array(links, np.uint8), turns)
    actual = [[row for row in turns_of_pair[::-1] if row >= 0] for turns_of_pair in rows.tolist()]
    assert actual == [turns_of_pair[-turns - 1 :] for turns_of_pair in expected]


@given(st.lists(st.lists(st.integers(5, 9), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(2, 20))
def test_cutting_on_disk_equals_cutting_in_chat(turns: list[list[int]], max_length: int) -> None:
    vocabulary = Vocabulary([*"甲乙丙丁戊", *MARKS, *BYTES])
    whole = source_of(turns, vocabulary, 1000)
    sources = Ragged.from_rows([[7], whole, whole, [8]]).select([1, 2])
    cut = turns_that_fit(sources, vocabulary.first_mark, max_length)
    assert [cut.row(i).tolist() for i in range(2)] == [source_of(turns, vocabulary, max_length)] * 2
    alone = questions_alone(cut, vocabulary.first_mark)
    assert [alone.row(i).tolist() for i in range(2)] == [turns[-1]] * 2


# In each conversation, the first pair has equal turns, and two pairs in a row have.
TURNS = "甲甲乙丙丙丙丁"
OF_TURNS = [("甲甲", "乙"), ("甲甲乙", "丙"), ("甲甲乙丙丙丙", "丁")]
# Of questions and answers, only the answers are targets.
ANSWERED = "甲甲乙丙丁丁戊戊己庚"
OF_ANSWERS = [("甲甲乙", "丙"), ("甲甲乙丙丁丁戊戊己", "庚")]
PAIRS = [*map(list, zip(ANSWERED[::2], ANSWERED[1::2], strict=True))]
MESSAGES = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(ANSWERED)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([*TURNS], OF_TURNS),
        ({"messages": MESSAGES}, OF_ANSWERS),
        ({"query": "己", "response": "庚", "history": PAIRS[:-1]}, OF_ANSWERS),
        ([{"turns": [{"question": q, "answer": a} for q, a in PAIRS]}], OF_ANSWERS),
    ],
    ids=["utterances", "messages", "history of a record", "records"],
)
def test_turns_of_pairs_that_equal_drops_stay_in_the_history(
    tmp_path: Path, content: object, expected: list[tuple[str, str]]
) -> None:
    corpus = encoded(settings(tmp_path, [content], history=9))

    def marked(turns: str) -> str:
        return "".join("<>"[age % 2] + turns[-1 - age] for age in reversed(range(len(turns))))

    assert texts(corpus) == [(marked(turns), answer) for turns, answer in expected]
    assert corpus.pairs == len(expected)


def test_duplicates_are_pairs_with_the_same_turns_before(tmp_path: Path) -> None:
    talks = [["甲", "乙", "丙"], ["丁", "乙", "丙"], ["甲", "乙", "丙", "戊"]]
    found = texts(encoded(settings(tmp_path, talks, history=2)))
    assert found == [("<甲", "乙"), (">甲<乙", "丙"), ("<丁", "乙"), (">丁<乙", "丙"), ("<甲>乙<丙", "戊")]


def test_conversation_is_on_one_side_of_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MIN_PAIRS_TO_SPLIT", 100)
    talks = [[f"第{talk}次", *("好" if turn == 4 else f"{talk}之{turn}" for turn in range(9))] for talk in range(300)]
    talks[7][5:5] = [""]  # in one conversation, turns are missing
    sides: dict[int, list[set[str]]] = {}
    for history in (0, 1):
        chosen = settings(tmp_path, talks, history=history, validation="auto")
        training = encoded(chosen, 50)
        held_out = validation_set(chosen.corpus, chosen.encoding, training.vocabulary, 50)
        assert held_out is not None
        assert training.pairs + held_out.pairs == sum(len(talk) - 1 for talk in talks) - 2
        # The answers name their conversation, but for one of them.
        sides[history] = [
            {answer.split("之")[0] for _, answer in texts(part) if "之" in answer} for part in (training, held_out)
        ]
    assert sides[0][0] & sides[0][1]
    assert not sides[1][0] & sides[1][1]
    assert 5 < len(sides[1][1]) < 30
    few = settings(tmp_path, [TALK], history=2, validation="auto")  # of which none may be held out
    assert validation_set(few.corpus, few.encoding, encoded(few).vocabulary) is None


def test_vocabulary_with_history_is_the_same_but_for_the_marks(tmp_path: Path) -> None:
    chosen = settings(tmp_path, [TALK] * 2)
    plain, marked = (encoded(replace(chosen, history=n)).vocabulary for n in (0, 2))
    at = plain.first_byte
    assert marked.tokens == [*plain.tokens[:at], *MARKS, *BYTES]
    assert marked.ids([*MARKS]) == marked.ids("".join(MARKS))  # spelled as any other text
    assert marked.text([at, at + 1, len(SPECIALS)]) == plain.tokens[len(SPECIALS)]
    allowed, *_ = spelling_automaton(marked)
    assert not allowed[:, at : at + 2].any()
    assert len(encoded(replace(chosen, history=2, vocabulary_size=264)).vocabulary) == 264
