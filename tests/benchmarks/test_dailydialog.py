"""The benchmark on DailyDialog: parts, measures that others publish, and a small run on made-up dialogues."""

import json
import math
import zipfile
from pathlib import Path

import pytest

from benchmarks.dailydialog import DailyDialogBenchmark, dailydialog_benchmark, opennmt_replies
from benchmarks.dailydialog_corpus import OFFICIAL, PUBLISHED_SPLIT, DailyDialog, cleaned, read_dailydialog
from benchmarks.dailydialog_figures import PUBLISHED, bleu, markdown, measure
from chatbot.errors import UserError
from tests.benchmarks.running import program
from tests.commands import run


def dialogues(part: str, number: int) -> str:
    return "".join(f"Hello {part} , {i} ! __eou__ It's {i % 7} . __eou__ Oh . __eou__\n" for i in range(number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The corpus as it is downloaded: an archive, a text in a folder, and a text."""
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("train/dialogues_act_train.txt", "1 2\n")
        archive.writestr("train/dialogues_train.txt", dialogues("A", 80))
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation/dialogues_validation.txt").write_text(dialogues("B", 10), encoding="utf-8")
    (tmp_path / "dialogues_test.txt").write_text(dialogues("C", 15), encoding="utf-8")
    return tmp_path


def test_official_parts_are_lower_cased_words(folder: Path) -> None:
    corpus = read_dailydialog(folder, OFFICIAL)
    assert {part: len(of_part) for part, of_part in corpus.parts.items()} == {"train": 80, "validation": 10, "test": 15}
    assert corpus.pairs("test")[:2] == [("hello c , 0 !", "it's 0 ."), ("it's 0 .", "oh .")]


def test_published_parts_are_of_each_hundred_and_cleaned(folder: Path) -> None:
    parts = read_dailydialog(folder, PUBLISHED_SPLIT).parts
    assert {part: len(of_part) for part, of_part in parts.items()} == {"train": 85, "validation": 10, "test": 10}
    assert parts["test"][0] == [["hello", "c", "0", "!"], ["it", "'s", "0", "."], ["oh", "."]]
    (folder / "dialogues_text.txt").write_text(dialogues("D", 100), encoding="utf-8")
    assert [turns[0][1:3] for turns in read_dailydialog(folder, PUBLISHED_SPLIT).parts["test"]] == [
        ["d", str(90 + i)] for i in range(10)
    ]


def test_words_outside_the_known_ones_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.dailydialog_corpus.KNOWN_WORDS", 2)
    turns = {"train": [[["a", "c", "a"], ["c", "b"]]], "validation": [[["a"], ["c"]]], "test": [[["a", "b"], ["c"]]]}
    corpus = DailyDialog(PUBLISHED_SPLIT, turns)
    assert (corpus.pairs("test"), corpus.model_pairs("test")) == ([("a b", "c")], [("a UNK", "c")])
    assert corpus.write(tmp_path)["test"].read_text(encoding="utf-8") == "a UNK __eou__ c __eou__\n"
    assert DailyDialog(OFFICIAL, turns).model_pairs("test") == [("a b", "c")]


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ("I don't know.It's OK , right ?", "i do n't know . it 's ok right ?"),
        ("that ’ s 'fine' - isn't it", "that s fine' is n't it"),
        ("the dogs' bone ' x", "the dogs' bone x"),
    ],
)
def test_cleaned_words_are_those_of_the_published_figures(turn: str, words: str) -> None:
    assert cleaned(turn).split() == words.split()


@pytest.mark.parametrize(
    ("reply", "reference", "method_4", "method_7"),
    [  # by NLTK 3.4.5, sentence_bleu with SmoothingFunction().method4 and .method7
        (
            *("i am fine , thanks .", "i am well , thank you ."),
            *([0.564321, 0.309091, 0.259609, 0.222882], [0.714807, 0.502748, 0.387884, 0.289881]),
        ),
        (
            *("yes yes yes", "yes , i do ."),
            *([0.171139, 0.12581, 0.109141, 0.095832], [0.316061, 0.226492, 0.176004, 0.131678]),
        ),
        (
            *("where is the bank near here ?", "the bank is there ."),
            *([0.428571, 0.267261, 0.253525, 0.230169], [0.674603, 0.488247, 0.394602, 0.304215]),
        ),
        ("i like tea .", "i like tea .", [1, 1, 1, 1], [1.333333, 1.217161, 1.152237, 1.01063]),
        ("oh", "oh", 4 * [0], 4 * [0]),  # NLTK divides by the logarithm of 1, which the published figures count as 0
        ("no", "yes it is", 4 * [0], 4 * [0]),
        ("", "yes it is", 4 * [0], 4 * [0]),
    ],
)
def test_bleu_is_that_of_nltk(reply: str, reference: str, method_4: list[float], method_7: list[float]) -> None:
    assert bleu(reply.split(), reference.split(), averaged=False) == pytest.approx(method_4, abs=1e-6)
    assert bleu(reply.split(), reference.split(), averaged=True) == pytest.approx(method_7, abs=1e-6)


def test_unknown_words_are_one_word_for_distinct() -> None:
    pairs = [("how are you", "i am fine"), ("where", "here .")]
    corpus = DailyDialog(PUBLISHED_SPLIT, {"train": [[["a", "d"]]]})
    measures = measure(pairs, ["a b c d", "a b e d"], corpus)
    assert (measures["distinct_1"], measures["distinct_2"], measures["mean_words"]) == (3 / 8, 3 / 6, 4)
    assert measures["relevance_at_1"] is None  # of fewer than ten
    (row,) = markdown({"row": {"mean_words": 4.04, "distinct_1": 0.375}})[2:]
    assert row == "| row | 4.0 | 0.3750 |" + 7 * "  |"


def test_a_folder_that_is_not_dailydialog_is_refused(folder: Path) -> None:
    (folder / "train.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"train.zip: cannot be read"):
        read_dailydialog(folder, OFFICIAL)
    (folder / "dialogues_train.txt").write_text("Hello\tHi\n", encoding="utf-8")
    with pytest.raises(UserError, match="no turn in it ends in __eou__"):
        read_dailydialog(folder, OFFICIAL)
    with pytest.raises(UserError, match=r"has neither dialogues_train.txt nor train.zip"):
        dailydialog_benchmark([str(folder / "validation"), "--attempt", "absent"])


def test_opennmt_replies_to_the_test_part_by_its_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = program(tmp_path, "onmt_train", "for p in 90 80.5 70; do echo Validation perplexity: $p; done")
    translate = "test $2 = model_step_1000.pt; test $4 = test.src; sed s/^/oh\\ / test.src > replies"
    program(tmp_path, "onmt_translate", f"set -e; {translate}; echo 'Average translation time (ms): 12.5'")
    monkeypatch.setattr("benchmarks.dailydialog.environment", lambda *_: home)
    parts = {part: [[["how", "are", "you"], ["fine"]]] for part in ("validation", "test")}
    parts["train"] = [*parts["test"], [["no"] * 51, ["yes"]]]
    with zipfile.ZipFile(tmp_path / "model_step_1000.pt", "w"), zipfile.ZipFile(tmp_path / "model_step_500.pt", "w"):
        pass
    (tmp_path / "model_step_1500.pt").write_bytes(b"PK half a model")
    flags = DailyDialogBenchmark(folder="F", split=PUBLISHED_SPLIT, opennmt=1)
    found = opennmt_replies(flags, DailyDialog(PUBLISHED_SPLIT, parts), tmp_path)
    assert found.replies == ["oh how are you"]
    assert found.nats_per_word == pytest.approx(math.log(80.5))
    assert (tmp_path / "train.tgt").read_text(encoding="utf-8") == "fine\n"
    with pytest.raises(UserError, match="its words are those of --split published"):
        DailyDialogBenchmark(folder="F", opennmt=1)


@pytest.mark.slow
def test_dailydialog_benchmark_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    training = ["--rnn-size", "8", "--embedding-size", "8", "--steps", "2", "--validate-every", "1", "--history", "1"]
    completed = run("benchmarks", "dailydialog", str(folder), "--beam-size", "1", "--", *training)
    assert completed.returncode == 0, completed.stderr.decode()
    *lines, last = completed.stdout.decode().splitlines()
    assert "The 15 of them that do not stand word for word in train:" in lines
    report = json.loads(last)
    rows = "as in the chat", "generated, --beam-size 1", "random replies of train", "people"
    assert tuple(report["all"]) == rows
    people, model = report["all"]["people"], report["all"][rows[0]]
    assert (people["pairs"], report["unseen"]["people"]["pairs"]) == (30, 15)
    assert people["bleu_1"] == pytest.approx(4 / 3, abs=1e-4)
    assert people["mean_words"] == 2.5
    assert 0 < model["nats_per_word"] < 10
    assert 0 < report["validation_nats_per_word"]["this project"] < 10
    assert report["published"].keys() == PUBLISHED[OFFICIAL].keys()
    with pytest.raises(UserError, match="is only measured"):
        dailydialog_benchmark([str(folder), "--", "--steps", "3"])
    with pytest.raises(UserError, match="was not trained with --split published"):
        dailydialog_benchmark([str(folder), "--split", "published"])
