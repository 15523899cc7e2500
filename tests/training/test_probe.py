"""--probe: questions from a file, answered at each validation, or at each checkpoint if nothing is validated."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.training.data import MOST_QUESTIONS, probe_samples, read_probe
from chatbot.training.start import train_here
from tests.training.small_run import small_settings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_questions_are_read_line_by_line(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "probe.txt"
    path.write_bytes("你好，你叫什么名字\r\n\r\n  今天的天气怎么样  \n".encode(encoding))
    assert read_probe(str(path)) == ["你好，你叫什么名字", "今天的天气怎么样"]


def test_first_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "probe.txt"
    path.write_text("".join(f"{i}\n" for i in range(100)))
    assert read_probe(str(path)) == [str(i) for i in range(MOST_QUESTIONS)]
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
    train_here(small_settings(data=(str(pairs_file),), steps=6, save_every=3, probe="probe.txt"))
    assert capsys.readouterr().out.count("  甲甲甲 -> ") == 3, "at steps 3 and 6, and in the end"
    assert small_settings(probe="probe.txt").run.probe == "probe.txt"
    written = EventAccumulator("tensorboard/default/all").Reload().Tensors("replies")
    assert [event.step for event in written] == [3, 6]
