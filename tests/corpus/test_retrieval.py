"""The index of training pairs: what is looked up, and folders that cannot be used."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from chatbot.corpus.history import question_of
from chatbot.corpus.retrieval import ELSEWHERE, Retrieval, write_retrieval
from chatbot.corpus.tokenizer import tokenizer
from chatbot.corpus.vocabulary import EOS, Vocabulary
from chatbot.errors import UserError
from tests.corpus.encoded import encoded_corpus, settings

QUESTIONS = ["今天天气怎么样", "明天天气呢", "你叫什么名字", "你几岁了", "晚安"]
PAIRS = [(f"{question}{i}", reply) for question in QUESTIONS for i, reply in enumerate(("好啊", f"{question}吗", "嗯"))]


def written(folder: Path, pairs: list[tuple[str, str]] = PAIRS, most: int = 100) -> Vocabulary:
    """Write the index of these pairs. Return their vocabulary."""
    corpus = encoded_corpus(settings(folder.parent, pairs, validation="none"))
    write_retrieval(folder, corpus.shards, corpus.vocabulary, corpus.fingerprint, most, folder.parent / "cache")
    return corpus.vocabulary


def test_replies_to_the_most_similar_questions_come_first(tmp_path: Path) -> None:
    vocabulary = written(tmp_path / "index")
    retrieval = Retrieval(tmp_path / "index", vocabulary)
    for question, reply in PAIRS:
        nearest = retrieval.nearest(question, 3)
        texts = [x.pair.reply for x in nearest]
        assert (texts[0], nearest[0].pair.question) == (reply, question)
        assert nearest[0].similarity == pytest.approx(1)
        assert len(set(texts)) == len(texts) == 3  # each reply once
        assert [x.similarity for x in nearest] == sorted((x.similarity for x in nearest), reverse=True)
        assert (nearest[0].shared == pytest.approx(1)) == (question == reply)
        assert (nearest[0].shared > 0) == bool(set(question) & set(reply))
    assert retrieval.nearest("xyz", 3) == []
    assert len(retrieval.nearest("天气", 1)) == 1


def test_what_is_kept_of_texts_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = written(tmp_path / "index")
    found = [Retrieval(tmp_path / "index", vocabulary).nearest(question, 3) for question, _ in PAIRS]
    monkeypatch.setattr("chatbot.corpus.retrieval.KEPT_PAIRS", 5)
    retrieval = Retrieval(tmp_path / "index", vocabulary)
    for _ in range(2):
        assert [retrieval.nearest(question, 3) for question, _ in PAIRS] == found
    assert len(retrieval._kept) <= 1 + 2 * 6  # the texts of one look-up


def test_pairs_of_the_index_are_counted(tmp_path: Path) -> None:
    """With their own reply, and each time that they are asked about."""
    vocabulary = written(tmp_path / "index")
    retrieval, tokenise = Retrieval(tmp_path / "index", vocabulary), tokenizer()
    ids = [(vocabulary.ids(tokenise(question)), vocabulary.ids(tokenise(reply))) for question, reply in PAIRS]
    assert retrieval.count(ids) == len(PAIRS)
    assert retrieval.count([*ids, *ids[:2]]) == len(PAIRS) + 2
    others = [(question, [*reply, reply[0]]) for question, reply in ids]
    turned = [(question[:1] + question[1:-1][::-1] + question[-1:], reply) for question, reply in ids]
    assert retrieval.count(others) == 0
    assert retrieval.count([*others, ids[4]]) == 1
    assert retrieval.count(turned) == sum(pair in ids for pair in turned) < len(PAIRS)


def test_log_probability_of_a_reply_is_by_the_shares_of_its_tokens(tmp_path: Path) -> None:
    vocabulary = written(tmp_path / "index")
    retrieval = Retrieval(tmp_path / "index", vocabulary)
    counts = Counter(dict.fromkeys(range(len(vocabulary)), 1))
    tokenise = tokenizer()
    replies = [vocabulary.ids(tokenise(reply)) for _, reply in PAIRS]
    for ids in replies:
        counts.update([*ids, EOS])
    for ids in replies:
        expected = sum(math.log(counts[i] / counts.total()) for i in [*ids, EOS])
        assert retrieval.log_probability(ids) == pytest.approx(expected, rel=1e-5)


def test_names_and_links_are_left_out(tmp_path: Path) -> None:
    pairs = [("你是谁", f"看{mark}a") for mark in ELSEWHERE] + [("你是哪位", "我是猫")]
    vocabulary = written(tmp_path / "index", pairs)
    nearest = Retrieval(tmp_path / "index", vocabulary).nearest("你是谁", 9)
    assert [x.pair.reply for x in nearest] == ["我是猫"]


def test_nothing_is_written_where_no_pair_is_left(tmp_path: Path) -> None:
    written(tmp_path / "index", [("你是谁", "@a")])
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("most", [1, 4, 14])
def test_pairs_beyond_the_limit_are_left_out_evenly(tmp_path: Path, most: int) -> None:
    written(tmp_path / "index", most=most)
    assert len(np.load(tmp_path / "index" / "lengths.npy")) == most


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
    (folder.with_name("index.part")).mkdir()  # of a process that was killed
    written(folder)
    assert [path.name for path in tmp_path.glob("index*")] == ["index"]


def test_index_of_a_corpus_is_made_once_for_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = written(tmp_path / "a")
    (damaged,) = (tmp_path / "cache").glob("retrieval-*/grams.npy")
    monkeypatch.delattr("chatbot.corpus.retrieval.character_index")
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
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "text"])
def test_damaged_index_is_an_error(tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "index"
    vocabulary = written(folder)
    path = folder / (name if "." in name else f"{name}.npy")
    content = {"truncated": path.read_bytes()[:-5], "empty": b"", "text": b"x" * 200}.get(damage)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"index: damaged, .*train this attempt again") as error:
        Retrieval(folder, vocabulary)
    assert len(str(error.value).replace(str(tmp_path), "")) < 200


def test_index_of_another_attempt_or_corpus_is_an_error(tmp_path: Path) -> None:
    vocabulary = written(tmp_path / "index")
    other = Vocabulary(["新", *vocabulary.tokens[5:]])
    with pytest.raises(UserError, match=r"of another attempt.*; remove that folder"):
        Retrieval(tmp_path / "index", other)
    shutil.copytree(tmp_path / "index", tmp_path / "mixed")
    written(tmp_path / "other", PAIRS[:4])
    shutil.copy(tmp_path / "other" / "replies.npy", tmp_path / "mixed" / "replies.npy")
    with pytest.raises(UserError, match="damaged"):
        Retrieval(tmp_path / "mixed", vocabulary)


def test_question_of_a_pair_with_history_is_its_last_turn(tmp_path: Path) -> None:
    pairs = [("你好", "好"), ("好", "再见吧")]
    changes = {"validation": "none", "history": 2, "vocabulary_size": 400}
    corpus = encoded_corpus(settings(tmp_path, pairs, **changes))
    write_retrieval(tmp_path / "index", corpus.shards, corpus.vocabulary, "", 9, tmp_path / "cache")
    asked = {x.pair.question for x in Retrieval(tmp_path / "index", corpus.vocabulary).nearest("你好", 9)}
    sources = [part.sources.row(i).tolist() for part in corpus.shards for i in range(len(part))]
    assert asked == {corpus.vocabulary.text(question_of(source, corpus.vocabulary)) for source in sources}
