"""The pairs that are shown before training, and the questions whose replies are shown, those of --probe among them."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chatbot.attempts.attempt import read_attempt
from chatbot.config.training import Settings
from chatbot.corpus import shards
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import BYTES, MARKS, SPECIALS, Vocabulary
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.inference.ratings import rating_of
from chatbot.training.data import MOST_QUESTIONS, prepare, probe_samples, read_probe
from chatbot.training.start import train_here
from tests.training.small_run import small_settings
from tests.training.untraced_update import train_untraced


@pytest.mark.parametrize("pairs_per_shard", [100, 2])
def test_shown_pairs_are_trained_on(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pairs_per_shard: int
) -> None:
    """Two pairs of eight are left; with small shards, there are shards without any."""
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", pairs_per_shard)
    long, equal = [(f"{'问' * 9}{i}", "答") for i in range(5)], ("甲甲甲", "甲甲甲")
    pairs = [*long[:3], ("甲甲", "乙乙"), *long[3:], equal, ("丙丙", "丁丁")]
    Path("pairs.tsv").write_text("".join(f"{question}\t{answer}\n" for question, answer in pairs))
    prepared = prepare(small_settings(data=("pairs.tsv",), tokenizer="char", max_length=5, both_directions="off"))
    out = capsys.readouterr().out
    assert "  left out: pairs longer than --max-length 5 tokens: 5\n" in out
    shown = {line for line in out.splitlines() if " -> " in line}
    samples = {(sample.question, sample.answer) for sample in prepared.samples}
    assert {f"  {' '.join(q)} -> {' '.join(a)}" for q, a in samples} == shown
    assert samples == {("甲甲", "乙乙"), ("丙丙", "丁丁")}


def test_samples_may_have_unknown_characters(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n你好吗\t很好\n")
    Path("held_out.tsv").write_text("😀嗨\t好\n嗨\t好\n")
    samples = prepare(small_settings(data=("pairs.tsv",), validation="held_out.tsv")).samples
    assert [sample.question for sample in samples] == ["😀嗨", "嗨"]
    assert "  你好 -> 你好 呀\n" in capsys.readouterr().out


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


def test_file_without_pairs_is_none_that_was_learned_from(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as one in which all replies are rated bad."""
    Path("pairs.tsv").write_text("你好\t早\n再见\t明天见\n")
    record = rating_of("你好", "走开", [], "bad", "weibo")
    Path("bad.jsonl").write_text(json.dumps(record) + "\n")
    train_untraced(data=("pairs.tsv", "bad.jsonl"), steps=1)
    assert "Training on 2 pairs of pairs.tsv; " in capsys.readouterr().out
    assert read_attempt(Path("checkpoints/default")).data == ("pairs.tsv",)


def test_offered_questions_have_words_of_the_vocabulary_only() -> None:
    """Neither bytes nor the marks of turns before the question."""
    vocabulary = Vocabulary(["你", "好", *MARKS, *BYTES])
    first, mark, byte = len(SPECIALS), vocabulary.first_mark, vocabulary.first_byte
    rows = [[first, first, byte + 65]] * 3 + [[mark, first, first]] * 2 + [[first, first + 1]]
    sources = Ragged.from_rows(rows)
    one = EncodedPairs.question_to_answer(sources, sources, sources.lengths)
    one_shard = MagicMock(__len__=lambda _: 1, __getitem__=lambda _, n: one)
    assert shards.frequent_questions(one_shard, vocabulary) == ["你好"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_first_questions_are_read_line_by_line(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "probe.txt"
    others = [str(i) for i in range(100)]
    path.write_bytes("\r\n".join(["你好，你叫什么名字", "", "  今天的天气怎么样  ", *others]).encode(encoding))
    expected = ["你好，你叫什么名字", "今天的天气怎么样", *others]
    assert read_probe(str(path)) == expected[:MOST_QUESTIONS]
    assert read_probe(None) == read_probe("none") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b" \n\n", "no question"), ("你好".encode("gb18030"), "not a text in UTF-8")],
)
def test_unusable_file_is_refused_before_the_pairs_are_read(
    work_dir: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("probe.txt").write_bytes(content)
    with pytest.raises(UserError, match=f"^--probe probe.txt: {message}.*give a text file"):
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
