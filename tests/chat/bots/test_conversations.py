"""The conversations of a bot: history, commands, limits, and errors of the engine."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatbot.chat.bots import conversations as module
from chatbot.chat.bots.conversations import Conversations, RefusedError
from chatbot.config.chat import BotSettings
from chatbot.decoding.reply_text import Origin
from chatbot.flags import compose
from chatbot.inference.request import Message, Piece, Question, Usage
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from tests.chat.server.fake_models import FakeEngine, nothing

TOO_MANY = r"Too many messages; please wait (29|30) seconds\. .*请等 \1 秒。"


def echo(question: Question) -> Iterator[Message]:
    """Reply with the history and the question, in two pieces."""
    for text in ("".join(f"{turn}/" for turn in question.history), question.text):
        yield Piece(0, text)
    yield Usage(1, 2)


def conversations(engine: FakeEngine | None = None, turns: int = 2, **settings: Any) -> Conversations:
    """Return the conversations of a bot with these settings, by default with an echo."""
    submit = (engine or FakeEngine(echo)).submit
    return Conversations(submit, compose(BotSettings, token_file="token", **settings), "talk", 9000, turns)


def talk(bot: Conversations, *messages: tuple[str, str]) -> list[str]:
    """Return the replies to messages (conversation, text), sent one after another."""

    async def all_replies() -> list[str]:
        return [await bot.answer(*message) for message in messages]

    return asyncio.run(all_replies())


@pytest.mark.parametrize(
    ("turns", "replies"),
    [
        (0, ["1", "x", "2", "3", "y"]),
        (2, ["1", "x", "1/1/2", "2/1/1/2/3", "x/x/y"]),  # of the four turns before, the last two
        (3, ["1", "x", "1/1/2", "1/2/1/1/2/3", "x/x/y"]),
    ],
)
def test_each_conversation_has_its_last_turns(turns: int, replies: list[str]) -> None:
    """Earlier turns are forgotten, except the last reply."""
    bot = conversations(engine := FakeEngine(echo), turns)
    assert talk(bot, ("a", "1"), ("b", "x"), ("a", "2"), ("a", "3"), ("b", "y")) == replies
    assert [question.last_reply for question in engine.questions] == ["", "", replies[0], replies[2], "x"]
    assert [question.client for question in engine.questions] == ["a", "b", "a", "a", "b"]  # who take turns
    assert (chat := bot._chats.get("a")) is not None
    assert len(chat.conversation.exchanges) <= turns + 1


def test_commands_reset_and_explain() -> None:
    bot = conversations()
    replies = talk(bot, ("a", "1"), ("a", " /Reset now"), ("a", "2"), ("a", "/start"), ("a", "/help"), ("a", "/other"))
    assert replies[1:3] == [module.RESET, "2"]
    assert replies[3] == replies[4] == module.help_text(9000)
    assert "9,000 question-answer pairs." in replies[3]
    assert "用 9,000 个问答对训练" in replies[3]
    assert "on question-answer pairs." in module.help_text(None)
    assert replies[5] == "2/2//other"  # a text like any other


def test_rating_is_recorded_once_and_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record has the history without bad replies, and the question to which a looked-up reply was written."""

    def looked_up(question: Question) -> list[Message]:
        return [Piece(0, f"re {question.text}", finish_reason="stop", origin=Origin("您好")), Usage(1, 1)]

    file = tmp_path / "data" / "ratings.jsonl"
    bot = conversations(FakeEngine(looked_up), ratings=str(file))
    texts = ("/good", "1", "/good", "/good", "2", "/good", "/bad", "3", "/good", "/reset", "/good")
    replies = talk(bot, *(("a", text) for text in texts))
    assert replies[0] == replies[-1] == module.NOT_RATED
    assert [replies[i] for i in (2, 3, 5, 6, 8)] == [module.RATED] * 5
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len({given.pop("client") for given in records}) == 1
    talk(bot, ("b", "1"), ("b", "/good"))
    first, *_, last = file.read_text(encoding="utf-8").splitlines()
    assert json.loads(last)["client"] not in first
    common = {"model": "talk", "written_to": "您好"}
    expected: list[dict[str, Any]] = [
        {**common, "history": [], "question": "1", "answer": "re 1", "rating": "good"},
        {**common, "history": [["1", "re 1"]], "question": "2", "rejected": "re 2", "rating": "bad"},
        {**common, "history": [], "question": "3", "answer": "re 3", "rating": "good"},
    ]
    assert records == [{**record, "time": given["time"]} for record, given in zip(expected, records, strict=True)]
    bot = conversations(ratings=str(file / "ratings.jsonl"))
    assert talk(bot, ("a", "1"), ("a", "/good"))[1] == module.NOT_SAVED
    assert capsys.readouterr().err.startswith("error: ")


def test_empty_text_is_not_remembered() -> None:
    def answer(question: Question) -> list[Message]:
        return [Piece(0, f"{len(question.history)}" if question.text else EMPTY_QUESTION_REPLY), Usage(0, 0)]

    bot = conversations(FakeEngine(answer))
    assert talk(bot, ("a", ""), ("a", "/good"), ("a", "x"))[1:] == [module.NOT_RATED, "0"]


@pytest.mark.parametrize("settings", [{"conversations": 2}, {"forget_minutes": 1e-9}], ids=["number", "age"])
def test_conversations_over_a_limit_are_forgotten(settings: dict[str, Any]) -> None:
    bot = conversations(**settings)
    names = ["a", "b", "a", "c", "b", "a"]
    by_number = ["1", "1", "1/1/1", "1", "1", "1"]  # c and then b take the places of b and a
    expected = by_number if "conversations" in settings else ["1"] * 6
    assert talk(bot, *((name, "1") for name in names)) == expected
    assert len(bot._chats) <= 2


def test_messages_of_a_conversation_are_answered_in_order() -> None:
    engine = FakeEngine(nothing)

    async def session() -> list[str]:
        bot = conversations(engine)
        tasks = [asyncio.create_task(bot.answer(name, text)) for name, text in (("a", "1"), ("a", "2"), ("b", "3"))]
        for texts, number in ((["1", "3"], 1), (["1", "3"], 0), (["1", "3", "2"], 2)):
            await asyncio.sleep(0.01)
            assert [question.text for question in engine.questions] == texts
            request = engine.requests[number]
            request.receive(Piece(0, f"reply to {request.question.text}"))
            request.receive(Usage(1, 1))
        return [await task for task in tasks]

    assert asyncio.run(session()) == ["reply to 1", "reply to 2", "reply to 3"]


def test_rate_limit_outlives_its_conversation() -> None:
    """Forgotten conversations and many others do not reset the limit. The notice is given once."""

    async def session() -> None:
        bot = conversations(conversations=1, messages_per_minute=2)
        for name in ("a", "b"):
            for text in ("1", "/help"):
                await bot.answer(name, text)
        for name, notice in (("a", TOO_MANY), ("b", TOO_MANY), ("a", "")):
            with pytest.raises(RefusedError) as caught:
                await bot.answer(name, "2")
            assert re.fullmatch(notice, str(caught.value))

    asyncio.run(session())


def refusal_of(engine: FakeEngine, **settings: Any) -> str:
    bot = conversations(engine, **settings)
    with pytest.raises(RefusedError) as caught:
        talk(bot, ("a", "private words"))
    return str(caught.value)


def test_engine_errors_are_reported_without_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal_of(FakeEngine(most=0)) == module.BUSY
    failing = FakeEngine(lambda question: [Piece(0, "half a re"), ValueError(question.text)])
    assert refusal_of(failing) == module.FAILED
    printed = capsys.readouterr().err
    assert "ValueError" in printed
    assert "private" not in printed


def test_a_reply_over_the_time_limit_is_cancelled() -> None:
    engine = FakeEngine(nothing)
    assert refusal_of(engine, reply_seconds=0.001) == module.TOO_SLOW
    (request,) = engine.requests
    assert request.cancelled.is_set()
    late = threading.Thread(target=request.receive, args=[Usage(1, 1)])  # when the loop is closed
    late.start()
    late.join()  # an exception in it would fail the test
