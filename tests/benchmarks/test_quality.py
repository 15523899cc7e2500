"""The benchmark of quality: its corpora, models of counts, published measures, and small runs."""

import json
import math
import random
import zipfile
from pathlib import Path

import pytest

from benchmarks import dailydialog
from benchmarks.corpora import Corpus, conversations, split
from benchmarks.corpora import dailydialog as corpus_of
from benchmarks.count_models import COPY_WEIGHT, measure_count_models
from benchmarks.dailydialog import OFFICIAL, PUBLISHED_SPLIT, DailyDialog, bleu, cleaned, read_dailydialog
from benchmarks.quality import random_replies
from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark
from tests.corpus.kneser_ney import SlowKneserNey, grams_of

TALKS = [[f"第{talk}句", "好的", f"再说{talk}", "再见"] for talk in range(12)]


def slow_nats(texts: list[str], order: int, held_out: list[tuple[str, str]], copy: float = 0.0) -> float:
    """Nats per character of the replies, one character after another."""
    begin, end = 0, 1
    vocabulary = LEAST_VOCABULARY + len({*"".join(texts)})
    slow = SlowKneserNey(grams_of([[*map(ord, text)] for text in texts], order, begin, end), order, vocabulary)
    nats = 0.0
    for question, reply in held_out:
        for *history, token in grams_of([[*map(ord, reply)]], order, begin, end):
            share = [*map(ord, question)].count(token) / len(question)
            nats -= math.log((1 - copy) * slow.probability(tuple(history), token) + copy * share)
    return nats / sum(len(reply) for _, reply in held_out)


def test_count_models_equal_the_slow_ones(tmp_path: Path) -> None:
    training = [("甲乙丙", "丙乙"), ("丙丙甲", "甲乙丁丁"), ("丁甲", "乙丙甲"), ("甲", "丁乙丙丙")]
    held_out = [("乙乙甲", "甲乙丙"), ("丁", "丙丁")]
    files = tmp_path / "train.tsv", tmp_path / "held_out.tsv"
    for file, pairs in zip(files, (training, held_out), strict=True):
        file.write_text("".join(f"{q}\t{a}\n" for q, a in pairs), encoding="utf-8")
    nats = measure_count_models(*files, tmp_path / "cache")
    replies, both_sides = [a for _, a in training], [text for pair in training for text in pair]
    assert nats["2-gram of replies"] == pytest.approx(slow_nats(replies, 2, held_out))
    assert nats["4-gram of both sides"] == pytest.approx(slow_nats(both_sides, 4, held_out))
    copied = slow_nats(both_sides, 4, held_out, COPY_WEIGHT)
    assert nats["4-gram of both sides, and copy"] == pytest.approx(copied)
    assert len(nats) == 7


def test_held_out_lines_are_those_of_the_documented_split(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    lines = [f"问{i}\t答{i}" for i in range(9)]
    file.write_text("\n".join(lines), encoding="utf-8")
    random.Random(7).shuffle(lines)
    training, held_out = split(str(file), 2, tmp_path)
    assert held_out.read_text(encoding="utf-8").splitlines() == lines[:2]
    assert training.read_text(encoding="utf-8").splitlines() == lines[2:]
    with pytest.raises(UserError, match=r"--held-out 9: .* has 9 lines"):
        split(str(file), 9, tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        split(str(tmp_path / "absent.tsv"), 9, tmp_path)


def test_whole_conversations_are_held_out(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    corpus = conversations(str(file), 0, tmp_path)
    parts = [[json.loads(line) for line in path.read_text().splitlines()] for path in (corpus.training, corpus.test)]
    assert parts == [[talk for talk in TALKS if talk != TALKS[9]], [TALKS[9]]]
    assert (corpus.groups, corpus.pairs[corpus.test][2]) == ({"first": [0], "later": [1, 2]}, ("再说9", "再见"))
    file.write_text("[]\n" * 9)
    with pytest.raises(UserError, match="9 conversations; at least 10"):
        conversations(str(file), 0, tmp_path)


def dialogues(part: str, number: int) -> str:
    return "".join(f"Hello {part} , {i} ! __eou__ It's {i % 7} . __eou__ Oh . __eou__\n" for i in range(number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """DailyDialog as it is downloaded: an archive, a text in a folder, and a text."""
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("train/dialogues_act_train.txt", "1 2\n")
        archive.writestr("train/dialogues_train.txt", dialogues("A", 80))
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation/dialogues_validation.txt").write_text(dialogues("B", 10), encoding="utf-8")
    (tmp_path / "dialogues_test.txt").write_text(dialogues("C", 15), encoding="utf-8")
    return tmp_path


def test_parts_of_both_splits(folder: Path) -> None:
    corpus = read_dailydialog(folder, OFFICIAL)
    assert {part: len(of_part) for part, of_part in corpus.parts.items()} == {"train": 80, "validation": 10, "test": 15}
    assert corpus.pairs("test")[:2] == [("hello c , 0 !", "it's 0 ."), ("it's 0 .", "oh .")]
    assert corpus_of(str(folder), 0, folder).groups["unseen"] == [*range(0, 30, 2)]  # second turns stand in train
    parts = read_dailydialog(folder, PUBLISHED_SPLIT).parts
    assert {part: len(of_part) for part, of_part in parts.items()} == {"train": 85, "validation": 10, "test": 10}
    assert parts["test"][0] == [["hello", "c", "0", "!"], ["it", "'s", "0", "."], ["oh", "."]]
    (folder / "dialogues_text.txt").write_text(dialogues("D", 100), encoding="utf-8")
    whole = read_dailydialog(folder, PUBLISHED_SPLIT).parts["test"]
    assert [turns[0][1:3] for turns in whole] == [["d", str(90 + i)] for i in range(10)]


def test_words_outside_the_known_ones_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dailydialog, "KNOWN_WORDS", 2)
    turns = {"train": [[["a", "c", "a"], ["c", "b"]]], "validation": [[["a"], ["c"]]], "test": [[["a", "b"], ["c"]]]}
    corpus = DailyDialog(PUBLISHED_SPLIT, turns)
    assert corpus.pairs("test") == [("a b", "c")]
    assert corpus.write(tmp_path)["test"].read_text(encoding="utf-8") == "a UNK __eou__ c __eou__\n"
    assert DailyDialog(OFFICIAL, turns).write(tmp_path)["test"].read_text() == "a b __eou__ c __eou__\n"
    measures = corpus.measure([("how are you", "i am fine"), ("where", "here .")], ["a b c d", "a b e d"])
    assert (measures["distinct_1"], measures["distinct_2"], measures["mean_words"]) == (3 / 8, 4 / 6, 4)
    assert measures["relevance_at_1"] is None  # of fewer than ten


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


def test_bleu_is_that_of_nltk() -> None:
    """NLTK divides by the logarithm of 1 for replies of a word, which the published figures count as 0."""
    cases = json.loads(Path(__file__).with_name("bleu_of_nltk.json").read_text(encoding="utf-8"))
    for reply, reference, method_4, method_7 in cases["reply, reference, method4, method7 of NLTK 3.4.5"]:
        assert bleu(reply.split(), reference.split(), averaged=False) == pytest.approx(method_4, abs=1e-6), reply
        assert bleu(reply.split(), reference.split(), averaged=True) == pytest.approx(method_7, abs=1e-6), reply


def test_a_folder_that_is_not_dailydialog_is_refused(folder: Path) -> None:
    (folder / "train.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"train.zip: cannot be read"):
        read_dailydialog(folder, OFFICIAL)
    (folder / "dialogues_train.txt").write_text("Hello\tHi\n", encoding="utf-8")
    with pytest.raises(UserError, match="no turn in it ends in __eou__"):
        read_dailydialog(folder, OFFICIAL)
    with pytest.raises(UserError, match=r"has neither dialogues_train.txt nor train.zip"):
        benchmark("quality", "--corpus", "dailydialog", "--data", str(folder / "validation"))


def test_random_replies_are_of_training_or_of_other_questions() -> None:
    texts, file, other = [(f"q{i}", f"a{i}") for i in range(20)], Path("train"), Path("test")
    others = random_replies(Corpus(file, other, other), texts)
    assert sorted(others) == sorted(answer for _, answer in texts)
    assert not [i for i, reply in enumerate(others) if reply == f"a{i}"]
    assert {*random_replies(Corpus(file, other, other, pairs={file: [("q", "b")]}), texts)} == {"b"}


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["pairs", "conversations", "dailydialog"])
def test_quality_benchmark_runs(corpus: str, folder: Path) -> None:
    """The nats of groups add up to those of all pairs."""
    (folder / "pairs").write_text("".join(f"你好 {i}\t我 很 好 {i % 5}\n" for i in range(60)), encoding="utf-8")
    (folder / "conversations").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    data = folder if corpus == "dailydialog" else folder / corpus
    tiny = ["--rnn-size", "8", "--embedding-size", "8", "--steps", "2", "--validate-every", "1", "--tokenizer", "char"]
    flags = ["--corpus", corpus, "--data", str(data), "--held-out", "20", "--beam-size", "1", "--history", "0", "1"]
    report = benchmark("quality", *flags, "--", *tiny)
    assert [(run["preset"], run["history"]) for run in report["runs"]] == [("small", 0), ("small", 1)]
    likelihood = {(row["history"], row["pairs of"]): row for row in report["likelihood"]}
    replies = {(row["history"], row["pairs of"], row["replies"]): row for row in report["replies"]}
    assert {by for *_, by in replies} == {"chat", "beam 1", "people", "random"}
    if corpus == "pairs":
        assert len(report["count_models"]) == 7
        assert replies[0, "all", "chat"].keys() >= {"distinct_characters_2", "top10_reply_share", "relevance_at_1"}
        for run in report["runs"]:
            found = likelihood[run["history"], "all"]
            assert run["nats_per_character"] == pytest.approx(found["nats_per_character"], rel=1e-3)
    if corpus == "conversations":
        first, *later = (len(turn) for turn in TALKS[9][1:])
        nats = {key: row["nats_per_character"] for key, row in likelihood.items()}
        for history in (0, 1):
            of_all = nats[history, "first"] * first + nats[history, "later"] * sum(later)
            assert nats[history, "all"] * (first + sum(later)) == pytest.approx(of_all, rel=1e-4)
    if corpus == "dailydialog":
        pairs = {group: row["pairs"] for (_, group), row in likelihood.items()}
        assert pairs == {"all": 30, "unseen": 15, "validation": 20}
        people = replies[0, "all", "people"]
        assert (people["mean_words"], people["bleu_1"]) == (2.5, pytest.approx(4 / 3, abs=1e-4))
        assert all(0 < row["nats_per_word"] < 20 for row in likelihood.values())
        assert report["published"].keys() == dailydialog.PUBLISHED[OFFICIAL].keys()
