"""The HTML report of an evaluation, parsed; hostile texts; the scores of each reply."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.corpus.history import source_of
from chatbot.corpus.vocabulary import BOS, BYTES, EOS, MARKS, Vocabulary
from chatbot.errors import UserError
from chatbot.evaluation import report as report_module
from chatbot.evaluation.measures import Sample, measure
from chatbot.evaluation.report import Entry, check_report, entries_of, heat_map, report_page
from chatbot.flags import compose
from chatbot.inference.text_responder import END, WordAttention
from chatbot.model.new_model import built_model
from chatbot.model.saved import Trained

HOSTILE = [
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</td></table>&amp;",
    "$title ${rows} $",
    "\x00\u202e",
]
VALUES = measure(["问"], ["嗯"], ["嗯"], list)
LIKELIHOOD = {"perplexity": 2.5, "nats_per_token": 0.916, "nats_per_character": 0.5}
MEASURES: dict[str, Any] = {
    "pairs": 1,
    "bleu_tokenize": "zh",
    "choice_random_at_1": 0.25,
    "choice_nearest_at_1": None,
    **LIKELIHOOD,
    **VALUES,
    "references": VALUES,
    "random": VALUES,
}


class Page(HTMLParser):
    """The tags and the texts of a page, those of its script and its style left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[str] = []
        self._raw = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw and data.strip():
            self.texts.append(data.strip())


def entry(text: str, baseline: str | None = None) -> Entry:
    """An entry whose texts are all this one, with attention."""
    attention = WordAttention([text, text], [text, END], np.array([[0.04, 0.96], [0.5, 0.5]], np.float32))
    return Entry(text, text, text, -3.14159, 1 / 3, attention, baseline, (text,))


def test_hostile_texts_are_shown_as_they_are() -> None:
    page = Page(report_page("<b>title", "--stop '<b>'", MEASURES, [entry(text, text) for text in HOSTILE]))
    plain = Page(report_page("title", "--top-p 0.9", MEASURES, [entry("你好", "你好") for _ in HOSTILE]))
    assert page.tags == plain.tags
    assert page.attributes == plain.attributes
    shown = "".join(page.texts)
    assert [shown.count(text) for text in HOSTILE[:4]] == [3 + 1 + 2 + 1 + 1] * 4  # with turn, heat map, baseline
    assert page.texts.count("<b>title") == 2
    assert not {"onerror", "src", "href"} & {*page.attributes}  # nothing of it is elsewhere


def test_report_has_the_measures_and_a_row_for_each_question() -> None:
    entries = [entry("你好"), entry("吗")._replace(attention=None, relevance=None)]
    page = Page(report_page("title", "--top-p 0.9", MEASURES, entries))
    assert page.tags.count("details") == 1
    assert page.tags.count("tr") == 4 + 1 + len(entries) + 3  # measures, headings, entries, heat map
    assert "chosen among ten: 0.250 with random others, - with" in "".join(page.texts)
    for text in ("relevance", "random of this file", "-3.14", "0.333", "log-probability"):
        assert text in page.texts
    assert "baseline" not in page.texts


def test_heat_map_is_darker_for_more_weight() -> None:
    attention = WordAttention(["甲", "乙", "丙"], [END], np.array([[0.04, 0.36, 1.0]], np.float32))
    assert heat_map(attention).endswith("<td><td class=w4><td class=w9></table>")


def test_scores_of_each_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-probability is that of the reply after the part of the question that the model reads."""
    monkeypatch.setattr(report_module, "MOST_ATTENTION", 2)
    settings = compose(Settings, rnn_size=8, embedding_size=6, max_length=3)
    vocabulary = Vocabulary([*"你好吗啊", "你好", *BYTES])
    model = built_model(settings.model, len(vocabulary), seed=4)
    questions, replies = ["你好吗", "啊啊啊啊啊", "吗"], ["好", "", "啊吗"]
    samples = [Sample(vocabulary.ids(question), question, "好") for question in questions]
    found = entries_of(Trained(settings, vocabulary, model, 0), samples, replies, list, ["你", "你", "你"])
    for entry, sample, reply in zip(found, samples, replies, strict=True):
        state, last, expected = model.encode(model.sequences(np.array([sample.ids[:3]]))), BOS, 0.0
        for token in [*vocabulary.ids(reply), EOS]:
            logits, state = model.step(state, tf.constant([last]))
            expected += float(tf.nn.log_softmax(logits)[0, token])
            last = token
        assert entry.log_probability == pytest.approx(expected, rel=1e-4)
    assert [entry.attention is None for entry in found] == [False, False, True]
    assert found[0].attention is not None
    assert (found[0].attention.reply, found[0].attention.question) == (["好", END], [*"你好吗"])
    assert [entry.relevance for entry in found] == [None] * 3  # fewer than ten questions
    assert [(entry.question, entry.reply, entry.baseline) for entry in found] == [
        (question, reply, "你") for question, reply in zip(questions, replies, strict=True)
    ]


def testturns_before_a_question_are_those_that_the_model_reads() -> None:
    vocabulary = Vocabulary([*"你好吗啊", *MARKS, *BYTES])
    turns = [vocabulary.ids(text) for text in ("啊", "你好", "吗")]
    for max_length, expected in ((7, ("啊", "你好")), (6, ("你好",)), (2, ())):
        assert report_module.turns_before(source_of(turns, vocabulary, max_length), vocabulary) == expected


def test_report_that_cannot_be_written_is_refused_at_once(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.evaluation.__main__.trained_directory", Path)
    monkeypatch.setattr("sys.argv", ["evaluation", "--data", "x.tsv", "--beam-size", "1", "--report", "no/r.html"])
    with pytest.raises(FileNotFoundError, match=r"no/r\.html"):
        commands.run("evaluate")


@pytest.mark.parametrize("name", ["pairs.tsv", "link", "page.html"])
def test_report_replaces_nothing_but_a_report(work_dir: Path, name: str) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n", encoding="utf-8")
    Path("link").symlink_to("pairs.tsv")
    Path("page.html").write_text("<!DOCTYPE html><title>replies</title>")
    before = Path(name).read_bytes()
    with pytest.raises(UserError, match=rf"^--report {name}: is there, and is no report; "):
        check_report(Path(name))
    assert Path(name).read_bytes() == before
    check_report(Path("new.html"))
    Path("new.html").write_text(report_page("title", "", MEASURES, [], "Warning: a < b"), encoding="utf-8")
    check_report(Path("new.html"))
    assert "<strong>Warning: a &lt; b</strong>" in Path("new.html").read_text()


@pytest.mark.parametrize(("is_terminal", "flags", "shown"), [(False, [], 1), (True, [], 0), (True, ["--json"], 1)])
def test_terminal_is_spared_the_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    flags: list[str],
    shown: int,
) -> None:
    monkeypatch.setattr("chatbot.evaluation.__main__._evaluate", lambda settings: {"pairs": 2})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert commands.run("evaluate", ["--data", "x.tsv", *flags]) == 0
    assert capsys.readouterr().out == '{"pairs": 2}\n' * shown
