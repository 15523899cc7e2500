"""The index of training pairs: similarity of texts against a slow twin, what is looked up, and damaged folders."""

import dataclasses
import errno
import itertools
import json
import math
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.tokenizer import tokenizer
from chatbot.corpus.vocabulary import EOS, Vocabulary, question_of
from chatbot.errors import UserError
from chatbot.retrieval import characters as similarity
from chatbot.retrieval.characters import character_index, similarities
from chatbot.retrieval.index import ELSEWHERE, Retrieval
from chatbot.retrieval.indexing import write_retrieval
from tests.corpus.encoded import encoded_corpus, settings

QUESTIONS = ["今天天气怎么样", "明天天气呢", "你叫什么名字", "你几岁了", "晚安"]
PAIRS = [(f"{question}{i}", reply) for question in QUESTIONS for i, reply in enumerate(("好啊", f"{question}吗", "嗯"))]


def written(folder: Path, pairs: list[tuple[str, str]] = PAIRS, most: int = 100, validated: bool = True) -> Vocabulary:
    """Write the index of these pairs. Return their vocabulary."""
    corpus = encoded_corpus(settings(folder.parent, pairs, validation="none"))
    of_corpus = corpus.shards, corpus.vocabulary, corpus.fingerprint, most, folder.parent / "cache"
    write_retrieval(folder, *of_corpus, validated)
    return corpus.vocabulary


class Index(NamedTuple):
    """An index of PAIRS, with the ids of each pair."""

    folder: Path
    vocabulary: Vocabulary
    ids: list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index that no test may change."""
    folder, tokenise = tmp_path_factory.mktemp("retrieval") / "index", tokenizer()
    vocabulary = written(folder)
    return Index(folder, vocabulary, [(vocabulary.ids(tokenise(q)), vocabulary.ids(tokenise(a))) for q, a in PAIRS])


def test_replies_to_the_most_similar_questions_come_first(index: Index) -> None:
    retrieval = Retrieval(index.folder, index.vocabulary)
    for question, reply in PAIRS:
        (nearest,) = retrieval.nearest([question], 3)
        texts = [x.pair.reply for x in nearest]
        assert (texts[0], nearest[0].pair.question) == (reply, question)
        assert nearest[0].similarity == pytest.approx(1)
        assert len(set(texts)) == len(texts) == 3  # each reply once
        assert [x.similarity for x in nearest] == sorted((x.similarity for x in nearest), reverse=True)
        assert (nearest[0].shared == pytest.approx(1)) == (question == reply)
        assert (nearest[0].shared > 0) == bool(set(question) & set(reply))
    assert retrieval.nearest(["xyz"], 3) == [[]]
    assert [len(found) for found in retrieval.nearest(["天气", "天气"], 1)] == [1, 1]


def test_caching_does_not_change_results(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [question for question, _ in PAIRS]
    found = Retrieval(index.folder, index.vocabulary).nearest(questions, 3)
    monkeypatch.setattr("chatbot.retrieval.index.MAX_CACHED_PAIRS", 5)
    retrieval = Retrieval(index.folder, index.vocabulary)
    for _ in range(2):
        assert [retrieval.nearest([question], 3)[0] for question in questions] == found
    assert len(retrieval._weigh._cache) <= 1 + 2 * 6  # the texts of one look-up


def test_pairs_of_the_index_are_counted(index: Index) -> None:
    """With their own reply, and each time that they are asked about."""
    retrieval, ids = Retrieval(index.folder, index.vocabulary), index.ids
    assert retrieval.count(ids) == len(PAIRS)
    assert retrieval.count([*ids, *ids[:2]]) == len(PAIRS) + 2
    others = [(question, [*reply, reply[0]]) for question, reply in ids]
    turned = [(question[:1] + question[1:-1][::-1] + question[-1:], reply) for question, reply in ids]
    assert retrieval.count(others) == 0
    assert retrieval.count([*others, ids[4]]) == 1
    assert retrieval.count(turned) == sum(pair in ids for pair in turned) < len(PAIRS)


def test_log_probability_of_a_reply_is_by_the_shares_of_its_tokens(index: Index) -> None:
    retrieval = Retrieval(index.folder, index.vocabulary)
    counts = Counter(dict.fromkeys(range(len(index.vocabulary)), 1))
    for _, ids in index.ids:
        counts.update([*ids, EOS])
    for _, ids in index.ids:
        expected = sum(math.log(counts[i] / counts.total()) for i in [*ids, EOS])
        assert retrieval.log_probability(ids) == pytest.approx(expected, rel=1e-5)


def test_names_and_links_are_left_out(tmp_path: Path) -> None:
    """Nothing is written where no pair is left. Without validation, they are answers."""
    pairs = [("你是谁", f"看{mark}a") for mark in ELSEWHERE] + [("你是哪位", "我是猫")]
    vocabulary = written(tmp_path / "index", pairs)
    (nearest,) = Retrieval(tmp_path / "index", vocabulary).nearest(["你是谁"], 9)
    assert [x.pair.reply for x in nearest] == ["我是猫"]
    written(tmp_path / "none", pairs[:1])
    assert not (tmp_path / "none").exists()
    vocabulary = written(tmp_path / "answers", pairs, validated=False)
    assert len(Retrieval(tmp_path / "answers", vocabulary)) == len(pairs)


@pytest.mark.parametrize("most", [1, 4, 14])
def test_pairs_beyond_the_limit_are_left_out_evenly(tmp_path: Path, index: Index, most: int) -> None:
    """As many are left out after each that is kept, but for one."""
    retrieval = Retrieval(tmp_path / "index", written(tmp_path / "index", most=most))
    kept = [number for number, pair in enumerate(index.ids) if retrieval.count([pair])]
    gaps = np.diff([*kept, kept[0] + len(PAIRS)])
    assert len(kept) == most
    assert max(gaps) - min(gaps) <= 1


def test_index_is_written_once_for_a_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    written(folder)
    mark = folder / "mark"
    mark.touch()
    written(folder)
    assert mark.exists()
    written(folder, PAIRS[:-1])
    assert not mark.exists()
    (folder / "index.json").write_text("[]")
    written(folder, PAIRS[:-1])
    assert json.loads((folder / "index.json").read_text())["most"] == 100
    validated = written(folder, PAIRS[:-1])
    for is_validated in (False, True):
        mark.touch()
        written(folder, PAIRS[:-1], validated=is_validated)
        assert not mark.exists()
        assert Retrieval(folder, validated).is_validated == is_validated
    (folder.with_name("index.part")).mkdir()  # of a process that was killed
    written(folder)
    assert [path.name for path in tmp_path.glob("index*")] == ["index"]


def test_a_full_disk_leaves_the_index_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = written(tmp_path / "index")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "index", PAIRS[:-1])
    assert len(Retrieval(tmp_path / "index", vocabulary)) == len(PAIRS)


def test_index_of_a_corpus_is_made_once_for_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = written(tmp_path / "a")
    (damaged,) = (tmp_path / "cache").glob("retrieval-*/grams.npy")
    monkeypatch.delattr("chatbot.retrieval.indexing.character_index")
    written(tmp_path / "b")
    files = [sorted((path.name, path.read_bytes()) for path in (tmp_path / name).iterdir()) for name in "ab"]
    assert files[0] == files[1]
    Retrieval(tmp_path / "b", vocabulary)
    damaged.write_bytes(b"")
    with pytest.raises(NameError):
        written(tmp_path / "c")
    monkeypatch.undo()
    written(tmp_path / "c")
    assert damaged.read_bytes() == (tmp_path / "c" / "grams.npy").read_bytes() != b""


@pytest.mark.parametrize(
    "name", ["index.json", "grams", "starts", "texts", "weights", "questions", "replies", "tokens"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "text", "of another corpus"])
def test_damaged_index_is_an_error(tmp_path: Path, index: Index, other: Path, name: str, damage: str) -> None:
    shutil.copytree(index.folder, tmp_path / "index")
    path = tmp_path / "index" / (name if "." in name else f"{name}.npy")
    content = path.read_bytes()
    path.unlink()
    if damage == "of another corpus":
        shutil.copy(other / path.name, path)
    elif damage != "missing":
        path.write_bytes({"truncated": content[:-5], "empty": b"", "text": b"x" * 200}[damage])
    with pytest.raises(
        UserError, match=r"index: (damaged, |belongs to another attempt).*train this attempt again"
    ) as error:
        Retrieval(tmp_path / "index", index.vocabulary)
    assert len(str(error.value).replace(str(tmp_path), "")) < 200


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of another corpus."""
    folder = tmp_path_factory.mktemp("other") / "index"
    written(folder, [*PAIRS[:4], ("猫在哪", "猫在树上呢")])
    return folder


def test_question_of_a_pair_with_history_is_its_last_turn(tmp_path: Path) -> None:
    pairs = [("你好", "好"), ("好", "再见吧")]
    changes = {"validation": "none", "history": 2, "vocabulary_size": 400}
    corpus = encoded_corpus(settings(tmp_path, pairs, **changes))
    write_retrieval(tmp_path / "index", corpus.shards, corpus.vocabulary, "", 9, tmp_path / "cache")
    retrieval = Retrieval(tmp_path / "index", corpus.vocabulary)
    asked = {x.pair.question for x in retrieval.nearest(["你好"], 9)[0]}
    sources = [part.sources.row(i).tolist() for part in corpus.shards for i in range(len(part))]
    assert asked == {corpus.vocabulary.text(question_of(source, corpus.vocabulary)) for source in sources}


def test_indexes_of_shorter_pairs_have_caches_of_their_own(tmp_path: Path) -> None:
    corpus = encoded_corpus(settings(tmp_path, [*PAIRS, ("长" * 70_000, "答")], validation="none", tokenizer="char"))
    for name, max_length in (("short", 50), ("all", sys.maxsize)):
        shards = dataclasses.replace(corpus.shards, max_length=max_length)
        write_retrieval(tmp_path / name, shards, corpus.vocabulary, corpus.fingerprint, 99, tmp_path / "cache")
    short, whole = (Retrieval(tmp_path / name, corpus.vocabulary) for name in ("short", "all"))
    assert (len(short), len(whole)) == (len(PAIRS), len(PAIRS) + 1)
    assert "长" * 70_000 in whole.texts()[0]


# Few characters, so that texts share them, with a space, which does not count, and one outside the first plane.
TEXT = st.text("你好吗天 😀", max_size=8)
TEXTS = st.lists(TEXT, min_size=1, max_size=12)


def grams_of(text: str) -> list[str]:
    visible = text.replace(" ", "")
    return [*visible, *map("".join, itertools.pairwise(visible))]


def slow_bm25(texts: list[str], query: str) -> list[float]:
    """BM25 with k1 = 1.5 and b = 0.75 over single characters and pairs (Robertson and Zaragoza, 2009)."""
    documents = [grams_of(text) for text in texts]
    mean = max(1.0, float(np.mean([len(document) for document in documents])))
    scores = [0.0] * len(texts)
    for gram in grams_of(query):
        having = sum(gram in document for document in documents)
        weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, document in enumerate(documents):
            count = document.count(gram)
            scores[i] += weight * count / (count + 1.5 * (0.25 + 0.75 * len(document) / mean))
    return scores


def slow_dice(texts: list[str], query: str, text: str) -> float:
    """Twice the weight of the characters and pairs that both have, by that of both; rare ones weigh more."""

    def weight(grams: set[str]) -> float:
        having = [sum(gram in grams_of(text) for text in texts) for gram in grams]
        return sum(math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for n in having)

    both = set(grams_of(query)), set(grams_of(text))
    total = weight(both[0]) + weight(both[1])
    return 2 * weight(both[0] & both[1]) / total if total else 0.0


@given(TEXTS, TEXT, TEXTS)
def test_similarities_of_any_texts_are_those_of_a_slow_twin(texts: list[str], query: str, others: list[str]) -> None:
    index = character_index(texts)
    expected = [slow_dice(texts, query, other) for other in others]
    asked, *weighed = index.weigh([query, *others])
    assert similarities(asked, weighed).tolist() == pytest.approx(expected)


@given(TEXTS, TEXT, st.integers(1, 5))
def test_scores_of_any_texts_are_those_of_a_slow_twin(texts: list[str], query: str, block: int) -> None:
    """Also where the texts are counted in several blocks."""
    with patch.object(similarity, "BLOCK", block):
        index = character_index(texts)
    assert index.scores(query).tolist() == pytest.approx(slow_bm25(texts, query), rel=1e-5)


@given(TEXTS, TEXT, st.integers(1, 5), st.integers(1, 8))
def test_nearest_texts_are_those_of_the_best_scores(
    texts: list[str], query: str, number: int, occurrences: int
) -> None:
    """However few occurrences are read at first, a text with one of them has its whole score."""
    index = character_index(texts)
    scores = index.scores(query)
    expected = sorted(np.flatnonzero(scores), key=lambda i: (-scores[i], i))[:number]
    numbers, best = index.nearest(query, number)
    assert [scores[i] for i in numbers] == pytest.approx([scores[i] for i in expected])
    assert best.tolist() == pytest.approx([scores[i] for i in numbers])
    with patch.object(similarity, "OCCURRENCES", occurrences):
        some, best = index.nearest(query, number)
    assert best.tolist() == pytest.approx([scores[i] for i in some])
    assert best.tolist() == sorted(best, reverse=True)


def test_only_the_best_candidates_of_the_rarest_characters_are_scored_whole() -> None:
    texts = ["好" * 5 + c for c in "甲乙甲乙"] + ["好"] * 8
    with patch.multiple(similarity, OCCURRENCES=4, CANDIDATES=2):
        numbers, scores = character_index(texts).nearest("好甲", 2)
    assert numbers.tolist() == [0, 2]
    assert scores.tolist() == pytest.approx([slow_bm25(texts, "好甲")[0]] * 2, rel=1e-5)


def test_texts_are_those_of_the_pairs(tmp_path: Path) -> None:
    questions, replies = Retrieval(tmp_path / "index", written(tmp_path / "index")).texts()
    assert [*zip(questions, replies, strict=True)] == [*map(tuple, PAIRS)]
    assert (questions[2:4], len(replies)) == ([question for question, _ in PAIRS[2:4]], len(PAIRS))
    with pytest.raises(IndexError):
        questions[len(PAIRS)]
