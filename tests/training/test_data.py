"""The pairs of a run: all files without the validation pairs; those that are shown, and the questions of --probe."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chatbot.attempts.description import read_attempt
from chatbot.attempts.trained import load_trained
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus import shards
from chatbot.corpus.batches import Batches
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.retrieval.ratings import rating_record
from chatbot.training.data import MAX_PROBE_QUESTIONS, prepare, probe_samples, read_probe
from chatbot.training.start import train_here
from tests.tiny_models import responder_of
from tests.training.small_run import small_settings
from tests.training.untraced_update import train_untraced


def write(name: str, *pairs: tuple[str, str]) -> str:
    """A file of these pairs; returns its name."""
    Path(name).write_text("".join(f"{q}\t{a}\n" for q, a in pairs))
    return name


def test_validation_pairs_are_not_trained_on(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write("pairs.tsv", *zip("甲乙丙丁戊己庚辛壬癸", "子丑寅卯辰巳午未申酉", strict=True))
    held_out = write("held_out.tsv", ("甲", "子"), ("乙", "丑"))
    settings = small_settings(data=(data,), validation=held_out, both_directions="off")
    assert sum(map(len, prepare(settings).training)) == 8
    assert "pairs that are in the validation file too: 2" in capsys.readouterr().out


def write_numbered_pairs(number: int) -> None:
    Path("pairs.tsv").write_text("".join(f"问题{i}\t回答{i}\n" for i in range(number)))


def test_a_twentieth_of_the_pairs_is_held_out_by_default(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_numbered_pairs(3_000)
    data = prepare(small_settings(data=("pairs.tsv",), both_directions="auto"))
    assert data.validation
    assert 100 < data.validation.pairs < 200
    assert data.description["pairs"] + data.validation.pairs == 3_000
    assert data.validation_decides
    assert data.both_directions
    out = capsys.readouterr().out
    assert f"Validating on {data.validation.pairs} pairs held out from the training data" in out
    assert f"pairs held out for validation: {data.validation.pairs}" in out


@pytest.mark.parametrize(("pairs", "validation"), [(3_000, "none"), (1_999, "auto")])
def test_nothing_is_held_out_from_few_pairs_or_with_validation_none(
    work_dir: Path, pairs: int, validation: str
) -> None:
    write_numbered_pairs(pairs)
    data = prepare(small_settings(data=("pairs.tsv",), validation=validation, both_directions="auto"))
    assert data.validation is None
    assert not data.both_directions
    assert data.description["pairs"] == pairs
    if validation == "none":
        train_untraced(validation="none", steps=1)
        assert train_untraced(steps=2)[0].data.validation is None, "a resumed attempt keeps the choice"


def test_archive_with_parts_validates_on_its_own_part(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_numbered_pairs(3_000)
    with zipfile.ZipFile("corpus.zip", "w") as archive:
        archive.write("pairs.tsv", "corpus_train.tsv")
        archive.writestr("corpus_dev.tsv", "问题1\t回答1\n甲\t乙\n")
        archive.writestr("corpus_test.tsv", "丙\t丁\n")
    data = prepare(small_settings(data=("corpus.zip",)))
    assert data.description["pairs"] == 2_999  # one pair is in both parts
    assert data.validation
    assert data.validation.pairs == 2
    out = capsys.readouterr().out
    assert "Validating on 2 pairs from corpus.zip (validation part).\n" in out
    assert "Not used for training: corpus.zip (test part).\n" in out


def test_every_validation_pair_is_scored_as_it_is_trained(work_dir: Path) -> None:
    """Text is cleaned and tokenised in the same way. Rules that drop pairs, and --max-length, do not apply."""
    data = write("pairs.tsv", ("ＡＢ好", "好吗"), ("你好吗", "ＡＢ吗"))
    held_out = write("held_out.tsv", ("你好吗好", "好"), ("吗", "吗"), ("ＡＢ", "ＡＢ"), ("ＡＢ", "ＡＢ"))
    rules = {"clean": ("nfkc", "equal", "duplicates"), "tokenizer": "char", "max_length": 3}
    prepared = prepare(small_settings(data=(data,), validation=held_out, both_directions="off", **rules))
    assert prepared.validation is not None
    (validation,), text = prepared.validation.shards, prepared.vocabulary.text
    questions = [text(validation.sources.row(row).tolist()) for row in range(len(validation))]
    assert questions == ["你好吗好", "吗", "AB", "AB"]
    assert validation.sources.lengths[0] > 3
    assert validation.sources.lengths[2:].tolist() == [3, 3]  # the space before a word of letters, A and B
    assert [(s.question, s.answer) for s in prepared.samples] == [("你好吗好", "好"), ("吗", "吗"), ("AB", "AB")]


@pytest.mark.parametrize(
    ("flags", "limit", "both"),
    [
        ({"validation": "held_out.tsv"}, 4, True),
        ({"validation": "held_out.tsv"}, 3, False),
        ({}, 4, False),
        ({"both_directions": "on"}, 3, True),
        ({"validation": "held_out.tsv", "both_directions": "off"}, 4, False),
    ],
)
def test_few_pairs_are_learned_in_both_directions_with_validation(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], limit: int, both: bool
) -> None:
    """Three pairs of four are short enough; of two of them, the reversed pair is short enough, too."""
    monkeypatch.setattr("chatbot.training.data.MIN_DECISIVE_PAIRS", 1)
    monkeypatch.setattr("chatbot.training.data.MAX_PAIRS_BOTH_DIRECTIONS", limit)
    write("held_out.tsv", ("甲", "子"))
    data = write("pairs.tsv", ("一", "二"), ("三四", "五"), ("一二三", "四"), ("五六七八", "九"))
    prepared = prepare(small_settings(data=(data,), tokenizer="char", max_length=3, **flags))
    assert prepared.both_directions == both
    assert sum(map(len, prepared.training)) == (3 + 2 if both else 3)


def test_attempt_keeps_cleaning_dictionary_and_directions(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without validation, by which both directions were learned, and without the cache."""
    monkeypatch.setattr("chatbot.training.data.MIN_DECISIVE_PAIRS", 1)
    Path("words.txt").write_text("小黄鸡机器人\n")
    Path("pairs.tsv").write_text("小黄鸡机器人 @某人\t会聊天\n小黄鸡机器人好\t会！！！！\n" * 3)
    flags = {"dictionary": "words.txt", "clean": ("names", "punctuation")}
    train_untraced(**flags, validation=write("held_out.tsv", ("嗨", "嗨嗨")), steps=1)
    shutil.rmtree("data/cache")
    resumed = prepare(small_settings(data=("pairs.tsv",), **flags, validation="none"))
    assert resumed.both_directions
    assert sum(map(len, resumed.training)) == 2 * 6
    Path("words.txt").unlink()
    loaded = load_trained(Path("checkpoints/default"))
    ids = responder_of(loaded, DecodingSettings()).ids("小黄鸡机器人 @别人")
    assert [loaded.vocabulary.tokens[i] for i in ids] == ["小黄鸡机器人"]


def test_samples_are_printed_without_control_characters(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stay in the pairs with --clean markup. Words of the dictionary without effect are named first."""
    Path("words.txt").write_text("iPhone 16\n")
    data = write("pairs.tsv", ("你\x1b好", "在吗"), ("嗯", "好"))
    prepare(small_settings(data=(data,), clean=("markup",), dictionary="words.txt"))
    out = capsys.readouterr().out
    assert out.startswith("words.txt: lines without effect: 1 of 1; ")
    assert "你 \ufffd 好 -> 在 吗" in out
    assert "\x1b" not in out


def test_many_files_are_one_corpus(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        Path(f"part{number}.tsv").write_text(f"问{number}\t答{number}\n" + ("坏行\n" if number == 6 else ""))
    assert sum(map(len, prepare(small_settings(data=("part*.tsv",))).training)) == 8
    out = capsys.readouterr().out
    assert "part4.tsv and 3 other files" in out
    assert [line.split(":")[0].strip() for line in out.splitlines() if ".tsv: tsv" in line] == ["part6.tsv"]


def test_run_begins_with_few_opened_shards(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pairs.tsv").write_text("".join(f"问{i}\t答{i % 50}{'长' * (i % 7)}\n" for i in range(600)))
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", 10)
    opened: list[Path] = []
    descriptors: list[int] = []
    map_file = shards._map

    def recorded(path: Path, dtype: np.dtype) -> np.ndarray:
        opened.append(path)
        descriptors.append(len(os.listdir("/proc/self/fd")))
        return map_file(path, dtype)

    settings = small_settings(data=("pairs.tsv",), tokenizer="char", both_directions="on")
    prepare(settings)  # encodes
    monkeypatch.setattr(shards, "_map", recorded)
    before = len(os.listdir("/proc/self/fd"))
    data = prepare(settings)
    assert len(data.training) == 60
    assert len(Batches(data.training, 4, 1).buckets) > 1
    assert len({path.stem for path in opened}) == 3  # of the samples
    assert max(descriptors) - before <= 2 * 3


@pytest.mark.parametrize(
    ("pairs_per_shard", "validated", "retrieve_pairs", "use"),
    [(100, False, 9, "not learned, but looked up"), (2, False, 0, "left out"), (2, True, 9, "left out")],
)
def test_shown_pairs_are_trained_on(
    work_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pairs_per_shard: int,
    validated: bool,
    retrieve_pairs: int,
    use: str,
) -> None:
    """Two pairs of eight are left; with small shards, there are shards without any."""
    monkeypatch.setattr("chatbot.training.data._is_decisive", lambda _: validated)
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", pairs_per_shard)
    long, equal = [(f"{'问' * 9}{i}", "答") for i in range(5)], ("甲甲甲", "甲甲甲")
    pairs = [*long[:3], ("甲甲", "乙乙"), *long[3:], equal, ("丙丙", "丁丁")]
    Path("pairs.tsv").write_text("".join(f"{question}\t{answer}\n" for question, answer in pairs))
    changes = {"max_length": 5, "both_directions": "off", "retrieve_pairs": retrieve_pairs}
    prepared = prepare(small_settings(data=("pairs.tsv",), tokenizer="char", **changes))
    out = capsys.readouterr().out
    assert f"  {use}: pairs longer than --max-length 5 tokens: 5\n" in out
    shown = {line for line in out.splitlines() if " -> " in line}
    samples = {(sample.question, sample.answer) for sample in prepared.samples}
    assert {f"  {' '.join(q)} -> {' '.join(a)}" for q, a in samples} == shown
    assert samples == {("甲甲", "乙乙"), ("丙丙", "丁丁")}


def test_offered_questions_are_short_and_frequent(work_dir: Path) -> None:
    """A long one and one character are not offered."""
    frequent = [
        ("你好", "早"),
        ("你好", "好呀"),
        ("你好", "在"),
        ("再见", "明天见"),
        ("再见", "好的"),
        ("谢谢", "不客气"),
    ]
    others = [("好", f"嗯{i}") for i in range(9)] + [(f"{'问' * 9}", f"答{i}") for i in range(9)]
    Path("pairs.tsv").write_text("".join(f"{question}\t{answer}\n" for question, answer in [*others, *frequent]))
    settings = small_settings(data=("pairs.tsv",), tokenizer="char", validation="none", clean=("none",))
    assert prepare(settings).description["questions"] == ["你好", "再见", "谢谢"]


def test_file_without_pairs_is_not_listed_as_training_data(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as one in which all replies are rated bad."""
    Path("pairs.tsv").write_text("你好\t早\n再见\t明天见\n")
    record = rating_record("你好", "走开", [], "bad", "weibo")
    Path("bad.jsonl").write_text(json.dumps(record) + "\n")
    train_untraced(data=("pairs.tsv", "bad.jsonl"), steps=1)
    assert "Training on 2 pairs from pairs.tsv; " in capsys.readouterr().out
    assert read_attempt(Path("checkpoints/default")).data == ("pairs.tsv",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_first_questions_are_read_line_by_line(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "probe.txt"
    others = [str(i) for i in range(100)]
    path.write_bytes("\r\n".join(["你好，你叫什么名字", "", "  今天的天气怎么样  ", *others]).encode(encoding))
    expected = ["你好，你叫什么名字", "今天的天气怎么样", *others]
    assert read_probe(str(path)) == expected[:MAX_PROBE_QUESTIONS]
    assert read_probe(None) == read_probe("none") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b" \n\n", "no question"), ("你好".encode("gb18030"), "not valid UTF-8")],
)
def test_unusable_file_is_refused_before_the_pairs_are_read(
    work_dir: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("probe.txt").write_bytes(content)
    with pytest.raises(UserError, match=f"^--probe probe.txt: {message}.*use a text file"):
        train_here(compose(Settings, data=("missing.tsv",), probe="probe.txt"))
    assert capsys.readouterr().out == ""
    assert not Path("checkpoints").exists()


def test_questions_are_cleaned_and_encoded_as_in_chat() -> None:
    vocabulary = Vocabulary(["你好", *"你好！", *MARKS, *BYTES])
    settings = compose(Settings, clean=("punctuation", "control"), history=1)
    (sample,) = probe_samples(["你好！！！！", "\u200b"], settings, vocabulary)
    assert (sample.question, sample.answer) == ("你好！！！！", "")
    assert sample.ids == [vocabulary.first_mark, *vocabulary.ids(["你好", "！"])]


def test_replies_are_shown_at_each_checkpoint_if_nothing_is_validated(
    pairs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("probe.txt").write_text("甲甲甲\n")
    train_here(small_settings(data=(str(pairs_file),), steps=2, save_every=1, probe="probe.txt"))
    assert capsys.readouterr().out.count("  甲甲甲 -> ") == 3, "at both steps, and in the end"
    written = EventAccumulator("tensorboard/default/all").Reload().Tensors("replies")
    assert [event.step for event in written] == [1, 2]
