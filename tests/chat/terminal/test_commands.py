"""The commands of the chat in a terminal, and saved conversations."""

import dataclasses
import io
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from chatbot.chat.conversation import Exchange
from chatbot.chat.terminal import commands, transcript
from chatbot.chat.terminal.commands import COMMANDS, FLAGS
from chatbot.chat.terminal.prompt import completer, history_path, make_private
from chatbot.chat.terminal.session import Screen, attention_rows
from chatbot.chat.terminal.transcript import load, save
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.decoding.reply_text import END, Origin, WordAttention
from chatbot.errors import UserError
from chatbot.inference.request import Piece
from chatbot.retrieval.ratings import rating_record
from tests.chat.terminal.fake_model import FakeReplier, fake_model
from tests.chat.terminal.typed import Keyboard, Line, Printed, printed, session, typed

SESSIONS = Path(__file__).parent / "sessions"
TOO_LONG = b'{"question": "a", "rejected": "b", "rating": "bad"}' + b"\n" * 100


def test_introduction_says_what_the_model_was_trained_on(capsys: Printed) -> None:
    model = fake_model()
    card = dataclasses.replace(model.card, questions=("晚安", "加油"))
    typed(dataclasses.replace(model, card=card), [])
    assert capsys.readouterr().err.splitlines() == [
        "Talking to fake: 1,000 pairs from pairs.tsv; step 1,200; 3.200 nats per character on held-out pairs.",
        "Questions from the training data: 晚安  加油",
        "/help lists all commands; Ctrl-D or /exit ends the chat.",
    ]


@pytest.fixture
def other_model(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide two models for /model: `none_read` reads no turns, `fake` reads two."""
    models = {"none_read": lambda: fake_model(turns=0, name="none_read"), "fake": lambda: fake_model(turns=2)}
    monkeypatch.setattr("chatbot.chat.loading.load_model", lambda folder, _: models[folder.name]())
    for name in models:
        config = Path("checkpoints", name, "config.json")
        config.parent.mkdir(parents=True)
        config.touch()


@pytest.mark.usefixtures("other_model")
@pytest.mark.parametrize("path", sorted(SESSIONS.glob("*.txt")), ids=lambda path: path.stem)
def test_sessions(path: Path, work_dir: Path) -> None:
    """The files contain the whole output for the lines typed after `>`, and the flags in the first line."""
    text = path.read_text(encoding="utf-8")
    flags, *lines = text.splitlines()
    words = [line.removeprefix(">").removeprefix(" ") for line in lines if line.startswith(">")]
    left: list[Line] = [KeyboardInterrupt if word == "^C" else word for word in words]
    screen = session(fake_model(turns=2), left, *flags.split()[2:]).replace(str(work_dir), "/home/me")
    shown = "\n".join(line.rstrip() for line in screen.splitlines())
    assert f"{flags}\n{shown}\n" == text


def test_retry_without_another_reply(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_draw_new_sample", lambda *_: None)
    retries: list[Line] = ["/retry"] * 101
    out, err = printed(capsys, ["a", *retries, "/set top_p=0.5", "b", "/retry"])
    assert out[100:] == ["b/s0.1"]
    assert [line.partition(";")[0] for line in err] == [
        *["error: beam_size 105: must be at most 100"] * 2,
        "top_p=0.5",
        "error: /retry: every sample repeats an earlier reply",
    ]


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        (Origin(), "The model generated this reply.\n"),
        (Origin("你是谁"), "A person wrote this reply to: 你是谁\n"),
        (Origin("你是谁", is_rated=True), "A user rated this reply good for: 你是谁\n"),
    ],
)
def test_why_names_the_pair_of_a_reply(
    capsys: Printed, monkeypatch: pytest.MonkeyPatch, work_dir: Path, origin: Origin, shown: str
) -> None:
    """This also works in a loaded conversation. Ratings contain the question, too."""
    monkeypatch.setattr(FakeReplier, "looked_up", origin)
    lines: list[Line] = ["你好", "/save chat.jsonl", "/why", "/bad", "/reset", "/load chat.jsonl", "/bad", "/why"]
    typed(fake_model(), lines, "--beam-size", "2")
    assert capsys.readouterr().out.count(shown) == 2
    records = [json.loads(line) for line in Path("data/ratings.jsonl").read_text().splitlines()]
    assert [record["written_to"] for record in records] == [origin.question] * 2


def test_why_explains_rules_and_the_fallback(capsys: Printed, monkeypatch: pytest.MonkeyPatch, work_dir: Path) -> None:
    monkeypatch.setattr(FakeReplier, "generates", False, raising=False)
    Path("rules.tsv").write_text("退货\t七天内可以\n", encoding="utf-8")
    typed(fake_model(), ["/set rules=rules.tsv fallback=你好/1", "怎么退货", "/why", "你好", "/why"])
    assert capsys.readouterr().out.endswith(
        "七天内可以\nThis reply comes from a rule (--rules).\n你好/1\nThe search found no reply.\n"
    )


def test_why_says_that_a_model_has_no_attention(capsys: Printed) -> None:
    typed(fake_model(attention=False), ["你好", " ", "/why"])
    out = capsys.readouterr().out
    assert "--attention" in out
    assert "none" in out


def test_table_of_attention_is_aligned_with_wide_characters(capsys: Printed) -> None:
    words = ["什么", "是", "ai", "?"], ["人工智能", "a\x1b[2J", END]
    weights = np.array([[0.1, 0.2, 0.7, 0], [0.6, 0, 0, 0.4], [1, 0, 0, 0]])
    Screen().table(attention_rows(WordAttention(*words, weights)))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "人工智能  ai 0.70    是 0.20  什么 0.10"
    assert lines[1] == "a\ufffd[2J     什么 0.60  ? 0.40   是 0.00"


def test_terminal_has_colours_and_wraps_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Keyboard()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    screen.table([["two words", "a b abcdefghijklmnop"]], ("name", "value"))
    screen.line("[red]1 :smile:")
    screen.note("[red]1")
    screen.error(UserError("[red]1"))
    emulator = pyte.Screen(20, 8)
    pyte.Stream(emulator).feed(terminal.getvalue().replace("\n", "\r\n").replace("\x1b[2m", "\x1b[34m"))
    lines = ["name       value", "two words  a b", "           abcdefghi", "           jklmnop"]
    lines += ["[red]1 :smile:", "[red]1", "error: [red]1", ""]
    assert [line.rstrip() for line in emulator.display] == lines
    styles = [(row[0].bold, row[0].fg, row[11].fg) for row in map(emulator.buffer.__getitem__, range(7))]
    plain, table = (False, "default", "default"), (False, "cyan", "default")
    assert styles[:5] == [(True, "default", "default"), table, table, table, plain]
    assert [foreground for _, foreground, _ in styles[5:]] == ["blue", "red"]  # pyte ignores dim


def test_reply_is_shown_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message after a reply that has stopped begins on a new line."""
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="utf-8"))

    def pieces(*texts: str) -> Iterator[Piece]:
        before = shown.getvalue()
        for i, text in enumerate(texts):
            yield Piece(0, text)
            assert shown.getvalue() == before + "".join(texts[: i + 1]).encode()
        if texts != ("完",):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Screen().stream(pieces(""))
    with pytest.raises(KeyboardInterrupt):
        Screen().stream(pieces("你", "好"))
    Screen().stream(pieces("完"))
    assert shown.getvalue().decode() == "你好\n完\n"


@pytest.mark.usefixtures("other_model")
def test_settings_are_shown_with_where_they_come_from(capsys: Printed) -> None:
    lines: list[Line] = ["/set history=1 beam_size=5", "/settings", "/model none_read", "/settings", "/model fake"]
    out, _ = printed(capsys, [*lines, "/settings"], turns=2)
    assert [line.split() for line in out if line.startswith(("history ", "beam_size", "top_p"))] == [
        *(["history", "1", "set"], ["beam_size", "5", "set"], ["top_p", "-"]),
        *(["history", "0", "model"], ["beam_size", "5", "set"], ["top_p", "-"]),
        *(["history", "2", "model"], ["beam_size", "5", "set"], ["top_p", "-"]),
    ]


@pytest.mark.usefixtures("other_model")
def test_rating_records_the_model_and_its_history(capsys: Printed) -> None:
    """It is corrected in place, even after the conversation was saved and loaded."""
    lines: list[Line] = ["a", "b", "/bad", "/model none_read", "/good", "/retry", "/good", "/model fake", "c", "/good"]
    printed(capsys, [*lines, "/save chat.jsonl", "/reset", "/load chat.jsonl", "/bad"], turns=2)
    written = [line for line in Path("data/ratings.jsonl").read_text().splitlines() if line.strip()]
    replies = [(r["model"], r.get("answer", r.get("rejected")), r["history"]) for r in map(json.loads, written)]
    assert replies == [
        ("fake", "b/1+2", [["a", "a/1"]]),
        ("none_read", "b/1", []),
        ("fake", "c/1+2", [["b", "b/1"]]),
    ]
    assert [json.loads(line)["rating"] for line in written] == ["good", "good", "bad"]


def test_ratings_without_effect_are_explained(capsys: Printed, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeReplier, "follows_ratings", False)
    _, err = printed(capsys, ["a", "/bad"])
    unchanged = "This does not change any replies: the model does not use retrieval or ignores ratings."
    assert err == [f"data/ratings.jsonl: rated bad. {unchanged}"]
    shutil.rmtree("data")
    Path("data").touch()
    assert printed(capsys, ["a", "/good", "b"])[1][0].startswith("error: data/ratings.jsonl: ")


def test_help_explains_commands_and_settings(capsys: Printed) -> None:
    """The command needs no slash."""
    lines: list[Line] = ["帮助", "/help /n", "/help anti_lm", "/help /ood", "/help zzz", "/help ban"]
    out, err = printed(capsys, lines)
    assert "separate several values by commas: ban=one,two" in " ".join(" ".join(out).split())
    assert [name for name in COMMANDS if not any(line.startswith(f"/{name}") for line in out)] == []
    assert sum(line.startswith("/n ") for line in out) == 2
    assert any(line.startswith("anti_lm  subtract R times") for line in out)
    assert err[0].startswith("error: /ood: no such command; did you mean /good?")
    assert err[1].startswith("error: /zzz: no such command; /help lists all commands.")


def test_completions(work_dir: Path) -> None:
    Path("chat.txt").touch()
    Path("checkpoints/weibo").mkdir(parents=True)
    Path("checkpoints/weibo/config.json").touch()
    found = completer()

    def texts(line: str) -> list[str]:
        completions = found.get_completions(Document(line), CompleteEvent())
        return [line[: len(line) + completion.start_position] + completion.text for completion in completions]

    assert texts("/he") == ["/help"]
    assert len(texts("/")) == len(COMMANDS)
    assert texts("/set seed=1 te") == ["/set seed=1 temperature="]
    assert texts("/set def") == ["/set default"]
    assert texts("/load ch") == ["/load chat.txt", "/load checkpoints"]
    assert texts("/save checkpoints/w") == ["/save checkpoints/weibo"]
    assert texts("/model ") == ["/model weibo"]
    assert texts("/help te") == ["/help temperature"]
    assert texts("hello") == texts("//he") == texts("/n 1") == texts("/load none/") == []


def test_surrogates_and_null_bytes(capsys: Printed, work_dir: Path) -> None:
    lines: list[Line] = [
        "\ud800",
        "/load a\x00b",
        "/save \udfffx.jsonl",
        "/model \x00/x",
        "/set stop=\ud800",
        "/\x1b[31m",
    ]
    out, err = printed(capsys, lines)
    assert out == ["?/1"]
    assert err[0].startswith("error: a\ufffdb: No such file")
    assert err[1] == "?x.jsonl: saved 1 question."
    assert err[-1].startswith("error: /\ufffd[31m: no such command")


def test_history_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert history_path() == Path("/home/me/.local/state/chatbot/chat_history")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "chatbot" / "chat_history"
    assert history_path() == path
    for content in ("", "+a question\n"):
        make_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == content
        path.write_text("+a question\n")
        path.chmod(0o644)


TURNS = [("你好", "你好呀"), ('a "b"', "c"), ("你几岁", "三岁"), ("再见", "再见啦")]


@pytest.mark.parametrize("bad", [[0], [1, 2], [3]])
def test_training_reads_what_was_saved_but_no_reply_that_was_rated_bad(tmp_path: Path, bad: list[int]) -> None:
    path = tmp_path / "chat.jsonl"
    exchanges = [
        Exchange(
            *turn, stored_rating=rating_record(*turn, (), "bad" if number in bad else "good", "weibo"), model="weibo"
        )
        for number, turn in enumerate(TURNS)
    ]
    save(path, exchanges)
    learned = [turn for number, turn in enumerate(TURNS) if number not in bad]
    assert [pair[:2] for pair in read(find_sources([str(path)])[0], Report())] == learned
    assert load(path) == exchanges


@pytest.mark.parametrize(
    "content",
    [
        b"\n \n",
        b"\xff\xfe\x00",
        b'{"messages": []}\n{',
        b'{"question": "a", "rejected": 1}',
        b'{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}',
        b'{"messages": ["a", "b"]}',
        TOO_LONG,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_file_without_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(transcript, "MAX_FILE_BYTES", len(TOO_LONG) - 1)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=r"contains no conversation; choose a file created by /save$"):
        load(tmp_path / "file")


WORDS = st.sampled_from([*COMMANDS, *(f"{name}=" for name in FLAGS), "default", "~", "..", "/", "'"])
LINES = st.lists(WORDS | st.text(max_size=6), max_size=4).map(" ".join)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["", "/", "//", "/set ", "/load ", "/n "]).flatmap(lambda a: LINES.map(a.__add__))))
def test_no_line_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("lines"))
        assert typed(fake_model(turns=2), ["a", *lines]) == 0
