"""The HTML report of an evaluation, parsed; hostile texts; the scores of each reply."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot import commands
from chatbot.attempts.trained import Trained
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary, source_of
from chatbot.decoding.reply_text import END, WordAttention
from chatbot.errors import UserError
from chatbot.evaluation import report as report_module
from chatbot.evaluation.measures import Measurer, Sample
from chatbot.evaluation.report import Bilingual, Entry, choice_line, entries_of, heat_map, report_page, summary
from chatbot.evaluation.start import check_report
from chatbot.flags import compose
from chatbot.training.new_model import build_model
from tests.oracle import likelihood
from tests.tiny_models import next_id_of

TITLE = Bilingual("title", "标题")
HOSTILE = [
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</td></table>&amp;",
    "$title ${rows} $",
    "\x00\u202e",
]
VALUES = Measurer([Sample([], "问", "嗯")], Vocabulary(BYTES), list, None)(["嗯"])
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
    page = Page(
        report_page(Bilingual("<b>title", "<b>标题"), "--stop '<b>'", MEASURES, [entry(text, text) for text in HOSTILE])
    )
    plain = Page(report_page(TITLE, "--top-p 0.9", MEASURES, [entry("你好", "你好") for _ in HOSTILE]))
    assert page.tags == plain.tags
    assert page.attributes == plain.attributes
    shown = "".join(page.texts)
    assert [shown.count(text) for text in HOSTILE[:4]] == [3 + 1 + 2 + 1 + 1] * 4  # with turn, heat map, baseline
    assert (page.texts.count("<b>title"), page.texts.count("<b>标题")) == (2, 1)
    assert not {"onerror", "src", "href"} & {*page.attributes}  # nothing of it is elsewhere


def test_report_has_the_measures_and_a_row_for_each_question() -> None:
    """It is English without scripts, and asks nothing of a network. A heat map is darker for more weight."""
    entries = [entry("你好"), entry("吗")._replace(attention=None, relevance=None)]
    content = report_page(TITLE, "", MEASURES, entries, Bilingual("Warning: a < b", "警告：a < b"))
    assert content.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert not re.search(r"https?:|url\(|@import|<link|src=", content)
    assert '<span lang="en">Warning: a &lt; b</span><span lang="zh">警告：a &lt; b</span>' in content
    assert "greedy search" in content
    assert "贪心搜索" in content
    page = Page(content)
    assert page.tags.count("details") == 1
    assert page.tags.count("tr") == 4 + 1 + len(entries) + 3  # measures, headings, entries, heat map
    assert "chosen among ten: 0.250 with random others, - with" in "".join(page.texts)
    for text in ("relevance", "random of this file", "-3.14", "0.333", "log-probability"):
        assert text in page.texts
    assert "baseline" not in page.texts
    attention = WordAttention(["甲", "乙", "丙"], [END], np.array([[0.04, 0.36, 1.0]], np.float32))
    assert heat_map(attention).endswith("<td><td class=w4><td class=w9></table>")


def test_table_in_a_terminal_and_on_the_page() -> None:
    """Columns without a value are left out."""
    names = ["distinct_characters_2", "top_reply_share", "top10_reply_share", "repeated_reply_share", "relevance_at_1"]
    names += ["bleu", "chrf", "mean_reply_tokens", "fluency_nats_per_character"]
    model = {name: number / 9 for number, name in enumerate(names, 1)}
    curve = {"least_score": -1.23456, "answered_share": 0.25, "precision_curve": [(0.5, 0.75, 0), (1, 0.5, -1)]}
    measures = {**MEASURES, **model, **curve, "baseline": {"bleu": 12.0}}
    first, headings, *rows, choice, precision = summary(measures, True, 0.5)
    assert first == "Replies to 1 held-out question; BLEU by sacrebleu's tokenisation zh:"
    assert re.split("  +", headings.strip()) == [
        *("distinct-2 of characters", "top reply", "top ten", "repeated", "relevance", "BLEU", "chrF"),
        *("mean tokens", "nats by n-grams"),
    ]
    assert [row.split("  ")[0] for row in rows] == ["model", "references", "random of this file", "baseline"]
    assert re.sub(" +", " ", rows[0]) == "model 0.111 22.2% 33.3% 44.4% 0.556 0.67 0.78 0.9 1.00"
    assert re.sub(" +", " ", rows[3]) == "baseline - - - - - 12.00 - - -"
    assert choice == choice_line(MEASURES)
    assert precision == "--min-score -1.235: 25% of the questions are answered, 50% of the answers are right."
    assert summary({**MEASURES, "least_score": None}, False, 0.5)[-1].startswith("No score reaches 50% right answers: ")
    assert "relevance" not in summary({**MEASURES, "relevance_at_1": None}, False, None)[1]
    page = report_page(TITLE, "", measures, [])
    assert 'points="150.0,25.0 300.0,50.0"' in page
    assert re.findall('<th><span lang="en">[^<]*</span><span lang="zh">([^<]*)</span>', page)[1:14] == [
        *("字的 distinct-2", "最常见的一条", "最常见的十条", "重复的回复", "相关性", "BLEU", "chrF", "平均词元数"),
        *("n 元模型的 nats", "模型", "参考回复", "随机参考回复", "基线"),
    ]


def test_scores_of_each_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-probability is that of the reply after the part of the question that the model reads."""
    monkeypatch.setattr(report_module, "MAX_ATTENTION", 2)
    settings = compose(Settings, rnn_size=8, embedding_size=6, max_length=6)
    vocabulary = Vocabulary([*"你好吗啊", "你好", *MARKS, *BYTES])
    model = build_model(settings.model, len(vocabulary), seed=4)
    next_id = next_id_of(model)
    sources = [
        source_of([[*map(vocabulary.id_of.__getitem__, turn)] for turn in turns], vocabulary, 9)
        for turns in (["啊", "你好吗"], ["啊" * 8], ["你", "好", "吗"])
    ]
    replies = ["好", "", "啊吗"]
    samples = [Sample(source, f"问{number}", "好") for number, source in enumerate(sources)]
    found = entries_of(Trained(settings, vocabulary, model, 0), samples, replies, list, ["你", "你", "你"])
    for entry, sample, reply in zip(found, samples, replies, strict=True):
        expected = likelihood(next_id, sample.ids[:6], vocabulary.ids(reply))
        assert entry.log_probability == pytest.approx(expected, rel=1e-4)
        assert (entry.question, entry.reply, entry.baseline) == (sample.question, reply, "你")
        assert entry.relevance is None  # fewer than ten questions
    assert [entry.before for entry in found] == [("啊",), (), ("你", "好")]
    assert [entry.attention is None for entry in found] == [False, False, True]
    assert found[0].attention is not None
    assert found[0].attention.reply == ["好", END]
    assert found[0].attention.question[-3:] == [*"你好吗"]


def test_files_are_checked_before_tensorflow_is_imported(work_dir: Path) -> None:
    """It takes seconds, and only `import_tensorflow` leaves out its log lines."""
    attempt = Path("checkpoints/default/config.json")
    attempt.parent.mkdir(parents=True)
    attempt.write_text("{}")
    Path("x").write_text("你好\t你好呀\n", encoding="utf-8")
    program = """
import sys
from chatbot import commands
for flags in ["none.tsv"], ["x", "--baseline-data", "none.tsv"], ["x", "--fluency-corpus", "none.tsv"]:
    try:
        commands.run("evaluate", ["--report", "report.html", "--data", *flags])
    except commands.UserError as error:
        print(error, "tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "none.tsv: no such file; check the path False\n" * 3


def test_report_replaces_only_a_report(work_dir: Path) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n", encoding="utf-8")
    Path("link").symlink_to("pairs.tsv")
    Path("page.html").write_text("<!DOCTYPE html><title>replies</title>")
    for name in ("pairs.tsv", "link", "page.html"):
        before = Path(name).read_bytes()
        with pytest.raises(UserError, match=rf"^--report {name}: exists and is not a report; "):
            check_report(Path(name))
        assert Path(name).read_bytes() == before
    for _ in range(2):
        check_report(Path("new.html"))
        Path("new.html").write_text(report_page(TITLE, "", MEASURES, []), encoding="utf-8")
    attempt = Path("checkpoints/default/config.json")
    attempt.parent.mkdir(parents=True)
    attempt.write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"no/r\.html"):  # before anything is loaded
        commands.run("evaluate", ["--data", "x.tsv", "--report", "no/r.html"])


@pytest.mark.parametrize(("is_terminal", "flags", "shown"), [(False, [], 1), (True, [], 0), (True, ["--json"], 1)])
def test_json_is_not_printed_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    flags: list[str],
    shown: int,
) -> None:
    monkeypatch.setattr("chatbot.evaluation.start._check", lambda settings: None)
    monkeypatch.setattr("chatbot.evaluation.start._measure", lambda settings, inputs: {"pairs": 2})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert commands.run("evaluate", ["--data", "x.tsv", *flags]) == 0
    assert capsys.readouterr().out == '{"pairs": 2}\n' * shown


# A screen in CSS pixels, and the language of the browser.
Open = Callable[[int, str], Any]
LONG = "哈" * 300 + "https://example.org/" + "x" * 300


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Shows a report of three replies in headless Chromium, without and with long texts."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs Chromium")
    page = tmp_path_factory.mktemp("report") / "report.html"
    measures = {**MEASURES, "choice_nearest_at_1": 0.5, "baseline": {**VALUES, "fluency_nats_per_character": 1.5}}
    entries = [entry("乙", "乙"), entry("甲", ""), entry(LONG, LONG)._replace(log_probability=-99, relevance=None)]
    title = Bilingual(f"weibo, step 1: replies to {'long_' * 40}.tsv", "weibo，第 1 步")
    warning = Bilingual("Warning: known", "警告：学过")
    page.write_text(report_page(title, "--beam-size 5 " * 9, measures, entries, warning), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def show(width: int, language: str) -> Any:
        agent = browser.execute_script("return navigator.userAgent")
        override = {"userAgent": agent, "acceptLanguage": language}
        browser.execute_cdp_cmd("Emulation.setUserAgentOverride", override)
        screen = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(page.as_uri())
        return browser

    yield show
    assert browser.get_log("browser") == []
    browser.quit()


@pytest.mark.system
@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("width", [320, 800, 1400])
def test_report_fits_the_screen(opened: Open, width: int, language: str) -> None:
    """Neither the page nor the table of measures is wider; a heat map of many words may be."""
    browser = opened(width, language)
    browser.execute_script("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    parts = "html, .scroll, .measures :is(td, th), p, h1, #filter, #pairs *"
    too_wide = """return [...document.querySelectorAll(arguments[0])]
        .filter(e => !e.closest("details *") && (e.getBoundingClientRect().right > innerWidth + 1
                     || e.tagName !== "DETAILS" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth))
        .map(e => e.outerHTML.slice(0, 80))"""
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script(too_wide, parts) == []


@pytest.mark.system
def test_rows_are_blocks_with_labels_on_a_phone(opened: Open) -> None:
    """They are sorted and filtered as in a table."""
    for language, first in (("en", "number"), ("zh", "序号")):
        browser = opened(320, language)
        headings = [heading.text for heading in browser.find_elements("css selector", "#pairs > thead th")]
        labels = browser.execute_script(
            "return [...document.querySelector('#pairs > tbody').rows[0].cells]"
            ".map(cell => getComputedStyle(cell, '::before').content.slice(1, -1))"
        )
        assert (labels, labels[0], len(labels)) == (headings, first, 7)

    def numbers() -> list[str]:
        rows = browser.find_elements("css selector", "#pairs > tbody > tr")
        return [row.find_element("css selector", "td").text for row in rows if row.is_displayed()]

    browser.find_elements("css selector", "#pairs > thead th")[4].click()
    assert numbers() == ["3", "1", "2"]
    browser.find_element("css selector", "#filter").send_keys("甲")
    assert numbers() == ["2"]
    assert browser.find_element("css selector", "#count").text == "1 / 3"


@pytest.mark.system
@pytest.mark.parametrize("width", [320, 1400])
def test_labels_are_in_the_language_of_the_browser(opened: Open, width: int) -> None:
    english, chinese = (opened(width, language).find_element("css selector", "body").text for language in ("fr", "zh"))
    for text in ("Likelihood of the references", "top ten", "log-probability", "Warning: known", "weibo, step 1"):
        assert text in english
        assert text not in chinese
    for text in ("参考回复的似然", "最常见的十条", "对数概率", "警告：学过", "weibo，第 1 步", "筛选"):
        assert text not in english
        assert (text in chinese) == (text != "筛选")
    browser = opened(width, "zh-TW")
    assert browser.title == "weibo，第 1 步"
    assert browser.find_element("css selector", "#filter").get_attribute("placeholder") == "筛选"
    assert "BLEU" in chinese
    words = re.sub(r"https\S+|weibo\S*|sacrebleu|--beam-size|nats|distinct-2|BLEU|chrF|13a|<eos>|zh|n 元", "", chinese)
    assert re.findall(r"[A-Za-z]{2,}", words) == []
