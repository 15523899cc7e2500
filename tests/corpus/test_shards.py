"""Shards: their pairs, lengths and types, and shards that are empty or removed."""

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from chatbot.corpus import shards
from chatbot.corpus.cache import MANIFEST
from chatbot.corpus.pair_ids import NO_PAIRS, EncodedPairs, lengths_of
from chatbot.corpus.shards import ShardArrays, Shards
from chatbot.errors import UserError
from tests.corpus.encoded import PAIRS, encoded_corpus, settings, texts


def rows(pairs: EncodedPairs) -> list[tuple[int, int]]:
    """The lengths of each pair."""
    return list(zip(pairs.sources.lengths.tolist(), pairs.targets.lengths.tolist(), strict=True))


def test_shards_drop_long_pairs_and_add_reversed_pairs(tmp_path: Path) -> None:
    pairs = [("一二三四", "五"), ("一", "二三"), ("一", "二三四五")]
    all_pairs = encoded_corpus(settings(tmp_path, pairs, tokenizer="char")).shards
    assert len(all_pairs[0]) == 3
    short = dataclasses.replace(all_pairs, max_length=4)
    assert rows(short[0]) == [(4, 1), (1, 2)]
    assert rows(dataclasses.replace(short, both_directions=True)[0]) == [(4, 1), (1, 2), (2, 1)]
    assert rows(dataclasses.replace(all_pairs, both_directions=True)[0])[3:] == [(1, 4), (2, 1), (4, 1)]


def test_lengths_are_known_without_opening_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", 5)
    pairs = [("一二三四五"[: 1 + i % 5], "子丑寅卯辰"[: 1 + i * i % 4] + str(i)) for i in range(40)]
    stored = encoded_corpus(settings(tmp_path, pairs, tokenizer="char")).shards
    assert len(stored) == 8
    chosen = [
        dataclasses.replace(stored, max_length=max_length, both_directions=both)
        for max_length in (sys.maxsize, 4)
        for both in (False, True)
    ]
    counted = [lengths_of(each) for each in chosen]
    monkeypatch.setattr(shards, "_map", None)
    for each, expected in zip(chosen, counted, strict=True):
        assert each.lengths.pairs == expected.pairs
        np.testing.assert_array_equal(each.lengths.sides, expected.sides)
        np.testing.assert_array_equal(each.lengths.counts, expected.counts)


@pytest.mark.parametrize("number", [1, 2, 5, 7, 14, 30])
def test_pairs_are_spread_evenly_over_the_shards_and_within_each(tmp_path: Path, number: int) -> None:
    """Of seven shards with 40 pairs each, beside an empty one."""
    parts = []
    for shard in (0, 1, 2, 4, 5, 6, 7):
        ids, lengths = np.array([[shard, row] for row in range(40)], np.uint16), np.ones((40, 3), np.uint32)
        parts.append((shard, ShardArrays(ids.ravel(), lengths)))
    shards.write_shards(tmp_path, 8, parts)
    found = [(source[0], target[0]) for source, target in Shards(tmp_path, 8, "uint16", NO_PAIRS).spread(number)]
    assert len(set(found)) == len(found) == number
    rows_of: dict[int, list[int]] = {shard: [] for shard in (0, 1, 2, 4, 5, 6, 7)}
    for shard, row in found:
        rows_of[shard].append(row)
    counts = [len(rows) for rows in rows_of.values()]
    assert max(counts) - min(counts) <= 1
    chosen = np.flatnonzero(counts)
    assert number > 7 or np.ptp(np.diff([*chosen, chosen[0] + 7])) <= 1
    for rows in filter(None, rows_of.values()):
        assert number < 8 or np.ptp(np.diff([*rows, rows[0] + 40])) <= 40 / number * 7


def test_a_shard_that_is_read_keeps_its_corpus_in_the_cache(tmp_path: Path) -> None:
    corpus = encoded_corpus(settings(tmp_path, PAIRS))
    manifest = corpus.shards.folder / MANIFEST
    os.utime(manifest, (0, 0))
    assert len(corpus.shards[0])
    assert manifest.stat().st_mtime > 0


def test_shard_without_pairs_is_empty_and_a_removed_one_is_named(tmp_path: Path) -> None:
    shards.write_shards(tmp_path, 1, [])
    pairs = Shards(tmp_path, 1, "uint16", NO_PAIRS)[0]
    assert len(pairs) == 0
    assert pairs.targets.joined().tolist() == []
    with pytest.raises(UserError, match=r"00001\.lengths: removed while it was in use"):
        Shards(tmp_path, 2, "uint16", NO_PAIRS)[1]


def test_frequent_questions_are_of_the_first_shard_with_pairs(tmp_path: Path) -> None:
    corpus = encoded_corpus(settings(tmp_path, [("你好啊", "好"), ("在吗", "在"), ("你好啊", "在")], tokenizer="char"))
    shards.write_shards(tmp_path, 1, [])
    empty = Shards(tmp_path, 1, "uint16", NO_PAIRS)[0]

    class TwoShards(list[EncodedPairs]):
        def pairs_in_file(self, number: int) -> int:
            return len(self[number])

    found = shards.frequent_questions(TwoShards([empty, corpus.shards[0]]), corpus.vocabulary)  # type: ignore[arg-type]
    assert found == ["你好啊"]  # the characters of the other question are rare


def test_parts_are_written_whenever_the_buffer_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not after each one from then on."""
    written: list[int] = []

    def recorded(folder: Path, buffers: dict[str, list[bytes]]) -> None:
        written.append(sum(map(len, buffers.values())) // len(ShardArrays._fields))
        append(folder, buffers)

    append = shards._append
    monkeypatch.setattr(shards, "_append", recorded)
    monkeypatch.setattr(shards, "BUFFER", 40)  # a part has 14 bytes
    parts = [(n % 2, ShardArrays(np.array([n], np.uint16), np.array([[1, 0, 0]], np.uint32))) for n in range(8)]
    shards.write_shards(tmp_path, 2, parts)
    assert written == [3, 3, 2]
    assert (tmp_path / "00001.tokens").read_bytes() == np.array([1, 3, 5, 7], np.uint16).tobytes()


def test_ids_take_two_bytes_if_possible(tmp_path: Path) -> None:
    corpus = encoded_corpus(settings(tmp_path, PAIRS))
    assert corpus.shards[0].sources.flat.dtype == np.uint16
    characters = "".join(chr(c) for c in [*range(0x3400, 0x9FFF), *range(0x20000, 0x2A6DF), *range(0xAC00, 0xD7A3)])
    pairs = [(characters[i : i + 100], answer) for i in range(0, len(characters), 100) for answer in ("好", "不好")]
    corpus = encoded_corpus(settings(tmp_path, pairs, tokenizer="char", vocabulary_size=100_000))
    assert len(corpus.vocabulary) > 1 << 16
    assert corpus.shards[0].sources.flat.dtype == np.uint32
    assert texts(corpus) == pairs
