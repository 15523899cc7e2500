"""Weights of pairs: from a column or field to the weights of a batch's tokens."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chatbot.config.corpus import EncodeSettings
from chatbot.corpus.batching.batches import pad_batch
from chatbot.corpus.encoding import selection, shards
from chatbot.corpus.encoding.vocabulary import ASK, BOS
from chatbot.corpus.training_set import training_set, validation_set
from chatbot.errors import UserError
from chatbot.flags import compose, replace
from tests.corpus.encoding.encoded import encoded_corpus, texts
from tests.corpus.reading.sample_files import written

ROWS = [("你好", "你好呀", "0.5"), ("早", "早上好", "2"), ("无", "零", "0"), ("晚", "晚安", "1e-3")]
KEPT = {"你好": 0.5, "早": 2.0, "晚": 1e-3}


def parquet(rows: list[tuple[str, str, str]]) -> bytes:
    """A Parquet file with a column of numbers."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    import io

    columns = dict(zip(("question", "answer", "weight"), zip(*rows, strict=True), strict=True))
    buffer = io.BytesIO()
    table = {name: [float(v) for v in values] if name == "weight" else list(values) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), buffer)
    return buffer.getvalue()


def records(rows: list[tuple[str, str, str]]) -> list[dict[str, object]]:
    return [{"question": q, "answer": a, "Weight": json.loads(w)} for q, a, w in rows]


FILES: dict[str, Callable[[list[tuple[str, str, str]]], str | bytes]] = {
    "tsv": lambda rows: "question\tanswer\tweight\n" + "".join("\t".join(row) + "\n" for row in rows),
    "csv": lambda rows: "weight,question,answer\n" + "".join(f'{w},"{q}",{a}\n' for q, a, w in rows),
    "jsonl": lambda rows: "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records(rows)),
    "json": lambda rows: json.dumps({"data": records(rows)}, ensure_ascii=False, indent=1),
    "messages": lambda rows: json.dumps(
        [
            {"weight": w, "messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
            for q, a, w in rows
        ]
    ),
    "parquet": parquet,
}


def settings(path: Path, **changes: object) -> EncodeSettings:
    """Settings for a file with weights."""
    values = {"tokenizer": "char", "validation": "none", "weight_column": "weight", **changes}
    return compose(EncodeSettings, data=(str(path),), cache=str(path.parent / "cache"), **values)


@pytest.mark.parametrize("name", FILES)
def test_weights_follow_their_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", 2)
    corpus = encoded_corpus(settings(written(tmp_path, name, FILES[name](ROWS))))
    weights = np.concatenate([pairs.weights for pairs in corpus.shards if pairs.weights is not None])
    found = dict(zip((question for question, _ in texts(corpus)), weights.tolist(), strict=True))
    assert found == pytest.approx(KEPT)
    (report,) = corpus.reports
    assert {reason: entry.count for reason, entry in report.dropped.items()} == {"pairs of weight 0": 1}


def test_column_by_number_needs_no_header(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "".join("\t".join(row) + "\n" for row in ROWS))
    corpus = encoded_corpus(settings(path, columns=("1", "2"), weight_column="3"))
    weights = corpus.shards[0].weights
    assert weights is not None
    assert weights.tolist() == pytest.approx([*KEPT.values()])


@pytest.mark.parametrize(
    ("name", "weight", "place"),
    [
        ("tsv", "-1", ", line 4"),
        ("tsv", "", ", line 4"),
        ("csv", "viel", ", line 4"),
        ("csv", "1e39", ", line 4"),  # beyond float32
        ("jsonl", "true", ", line 3"),
        ("jsonl", '"nan"', ", line 3"),
        ("jsonl", "[1]", ", line 3"),
        ("json", "-1", ""),
        ("parquet", "inf", ", row 3"),
    ],
)
def test_weight_that_cannot_be_used_is_one_line_with_its_place(
    tmp_path: Path, name: str, weight: str, place: str
) -> None:
    path = written(tmp_path, "a", FILES[name]([*ROWS[:2], ("无", "零", weight)]))
    with pytest.raises(UserError, match=f"{path}{place}.*: the weight .* is not a finite number of at least 0; corr"):
        encoded_corpus(settings(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FILES["tsv"](ROWS), "a: no column rank; give --weight-column one of: 1 'question', 2 'answer', 3 'weight'"),
        (FILES["jsonl"](ROWS), "a, pair 1: no field rank with a weight; correct it, or leave out --weight-column"),
        ("E\nM 你好\nM 你好呀\n", "a, pair 1: no field rank with a weight"),
    ],
)
def test_missing_column_or_field_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encoded_corpus(settings(written(tmp_path, "a", content), weight_column="rank"))


def test_weights_multiply_the_token_weights_in_both_directions_but_not_of_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "FEWEST_SPLIT", 50)
    rows = [(f"问{i}", f"答{i}", str(1 + i % 3)) for i in range(200)]
    chosen = settings(written(tmp_path, "a", FILES["tsv"](rows)), validation="auto")
    corpus = training_set(chosen.corpus, chosen.encoding)
    pairs = dataclasses.replace(corpus.shards, both_directions=True)[0]
    for begin in (BOS, ASK):
        rows_of_batch = np.flatnonzero(pairs.begins == begin)[:3]
        questions = pairs.sources if begin == BOS else pairs.targets
        numbers = [int(corpus.vocabulary.text(questions.row(row).tolist())[1:]) for row in rows_of_batch.tolist()]
        batch = pad_batch(pairs, rows_of_batch, 9, 9)
        np.testing.assert_array_equal(batch.weights, (batch.target_out > 0) * np.array([[1 + i % 3] for i in numbers]))
    held_out = validation_set(chosen.corpus, chosen.encoding, corpus.vocabulary)
    assert held_out is not None
    assert held_out.pairs > 3
    assert held_out.shards[0].weights is None


def test_without_weights_nothing_changes_on_disk(tmp_path: Path) -> None:
    path = written(tmp_path, "a", FILES["tsv"](ROWS))
    plain = encoded_corpus(settings(path, weight_column=None)).shards
    weighted = encoded_corpus(settings(path)).shards
    assert {p.suffix for p in weighted.folder.iterdir()} - {p.suffix for p in plain.folder.iterdir()} == {".weights"}
    assert plain[0].weights is None
    assert encoded_corpus(replace(settings(path), weight_column=None)).shards.folder == plain.folder
