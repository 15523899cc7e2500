"""The conversations of a bot: history, commands, limits, and errors of the engine."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from chatbot.chat.bots import conversations as module
from chatbot.chat.bots.conversations import Conversations, RefusedError
from chatbot.inference.engine import BusyError
from chatbot.inference.questions import Piece, Question, Receive, Request, Usage
from chatbot.inference.reply_text import Origin
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from tests.chat.bots.engines import conversations


def talk(bot: Conversations, *messages: tuple[str, str]) -> list[str]:
    """The replies to messages, (conversation, text), one after another."""

    async def all_replies() -> list[str]:
        return [await bot.answer(*message) for message in messages]

    return asyncio.run(all_replies())


def test_each_conversation_has_its_last_turns() -> None:
    bot = conversations(turns=2)
    assert talk(bot, ("a", "1"), ("b", "x"), ("a", "2"), ("a", "3"), ("b", "y")) == [
        "1",
        "x",
        "1/1/2",
        "2/1/1/2/3",  # of the four turns before, the last two
        "x/x/y",
    ]


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_the_engine_gets_the_last_reply_and_turns_before_are_forgotten(turns: int) -> None:
    def submit(question: Question, receive: Receive) -> Request:
        receive(Piece(0, f"{question.last_reply}+"))
        receive(Usage(0, 0))
        return Request(question, receive)

    bot = conversations(submit, turns)
    replies = talk(bot, *(("a", text) for text in ("1", "/reset", "2", "3", "4", "5")))
    assert replies == ["+", module.RESET, "+", "++", "+++", "++++"]
    (chat,) = bot._chats.values()
    assert len(chat.conversation.exchanges) <= turns + 1
    assert chat.conversation.last is not None
    assert len(chat.conversation.last.before) == turns


def test_commands_reset_and_explain() -> None:
    bot = conversations()
    replies = talk(bot, ("a", "1"), ("a", " /Reset now"), ("a", "2"), ("a", "/start"), ("a", "/help"), ("a", "/other"))
    assert replies[1:3] == [module.RESET, "2"]
    assert replies[3] == replies[4] == module.help_of(9000)
    assert "9,000 question-answer pairs." in replies[3]
    assert "用 9,000 个问答对训练" in replies[3]
    assert "on question-answer pairs." in module.help_of(None)
    assert replies[5] == "2/2//other"  # a text like any other


def records_of(file: Path) -> list[Any]:
    """The records of a file of ratings, without their times."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines]


def test_a_rating_is_kept_once_and_corrected(tmp_path: Path) -> None:
    """With the turns before, but no bad reply among them, and the question that a looked-up reply was written to."""

    def submit(question: Question, receive: Receive) -> Request:
        receive(Piece(0, f"re {question.text}", finish_reason="stop", origin=Origin("您好")))
        receive(Usage(1, 1))
        return Request(question, receive)

    file = tmp_path / "data" / "ratings.jsonl"
    bot = conversations(submit, ratings=str(file))
    texts = ("/good", "1", "/good", "/good", "2", "/good", "/bad", "3", "/good", "/reset", "/good")
    replies = talk(bot, *(("a", text) for text in texts))
    assert replies[0] == replies[-1] == module.NOT_RATED
    assert [replies[i] for i in (2, 3, 5, 6, 8)] == [module.RATED] * 5
    first, second, third = records_of(file)
    common = {"model": "talk", "written_to": "您好"}
    assert first == {**common, "history": [], "question": "1", "answer": "re 1", "rating": "good"}
    assert second == {**common, "history": [["1", "re 1"]], "question": "2", "rejected": "re 2", "rating": "bad"}
    assert (third["question"], third["history"]) == ("3", [])


def test_a_rating_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    bot = conversations(ratings=str(tmp_path / "file" / "ratings.jsonl"))
    assert talk(bot, ("a", "1"), ("a", "/good"))[1] == module.NOT_KEPT
    assert capsys.readouterr().err.startswith("error: ")


def test_empty_text_is_not_remembered() -> None:
    def submit(question: Question, receive: Receive) -> Request:
        receive(Piece(0, EMPTY_QUESTION_REPLY if not question.text else f"{len(question.history)}"))
        receive(Usage(0, 0))
        return Request(question, receive)

    assert talk(conversations(submit), ("a", ""), ("a", "/good"), ("a", "x"))[1:] == [module.NOT_RATED, "0"]


@pytest.mark.parametrize("settings", [{"conversations": 2}, {"forget_minutes": 1e-9}], ids=["number", "age"])
def test_conversations_over_a_limit_are_forgotten(settings: dict[str, Any]) -> None:
    bot = conversations(**settings)
    names = ["a", "b", "a", "c", "b", "a"]
    by_number = ["1", "1", "1/1/1", "1", "1", "1"]  # c and then b take the places of b and a
    expected = by_number if "conversations" in settings else ["1"] * 6
    assert talk(bot, *((name, "1") for name in names)) == expected
    assert len(bot._chats) <= 2


def test_messages_of_a_conversation_are_answered_in_turn_and_others_meanwhile() -> None:
    begun: list[str] = []
    ends: dict[str, Receive] = {}

    def submit(question: Question, receive: Receive) -> Request:
        begun.append(question.text)
        ends[question.text] = receive
        return Request(question, receive)

    async def session() -> list[str]:
        bot = conversations(submit)
        tasks = [asyncio.create_task(bot.answer(name, text)) for name, text in (("a", "1"), ("a", "2"), ("b", "3"))]
        for texts, text in ((["1", "3"], "3"), (["1", "3"], "1"), (["1", "3", "2"], "2")):
            await asyncio.sleep(0.01)
            assert begun == texts
            ends[text](Piece(0, f"reply to {text}"))
            ends[text](Usage(1, 1))
        return [await task for task in tasks]

    assert asyncio.run(session()) == ["reply to 1", "reply to 2", "reply to 3"]


def test_too_many_messages_are_refused_with_one_notice() -> None:
    async def session() -> list[tuple[str, int, bool]]:
        bot = conversations(messages_per_minute=2)
        await bot.answer("a", "1")
        await bot.answer("a", "/help")
        refused = []
        for _ in range(2):
            with pytest.raises(RefusedError) as caught:
                await bot.answer("a", "3")
            refused.append((str(caught.value)[:8], caught.value.status, caught.value.retry_after in (29, 30)))
        assert await bot.answer("b", "1") == "1"
        return refused

    assert asyncio.run(session()) == [("Too many", 429, True), ("", 429, True)]


def test_rate_limit_of_a_conversation_outlives_it_and_those_of_others() -> None:
    """Neither a conversation that was forgotten nor many others make room for more messages."""

    async def session() -> None:
        bot = conversations(conversations=1, messages_per_minute=1)
        for name in ("a", "b"):
            await bot.answer(name, "1")
        for name in ("a", "b"):
            with pytest.raises(RefusedError) as caught:
                await bot.answer(name, "2")
            assert caught.value.status == 429

    asyncio.run(session())


def refusal_of(submit: module.Submit, **settings: Any) -> RefusedError:
    bot = conversations(submit, **settings)
    with pytest.raises(RefusedError) as caught:
        talk(bot, ("a", "private words"))
    return caught.value


def test_errors_of_the_engine_are_refusals_and_reported_without_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    def busy(question: Question, receive: Receive) -> Request:
        raise BusyError

    def failing(question: Question, receive: Receive) -> Request:
        receive(Piece(0, "half a re"))
        receive(ValueError(question.text))
        return Request(question, receive)

    refused = refusal_of(busy)
    assert (str(refused), refused.status, refused.retry_after) == (module.BUSY, 503, 5)
    assert refusal_of(failing).status == 500
    printed = capsys.readouterr().err
    assert "ValueError" in printed
    assert "private" not in printed


def test_a_reply_over_the_time_limit_is_cancelled() -> None:
    request, timers = Request(Question(""), print), []

    def submit(question: Question, receive: Receive) -> Request:
        timers.append(threading.Timer(0.05, receive, [Usage(1, 1)]))  # when the loop is closed
        timers[0].start()
        return request

    assert refusal_of(submit, reply_seconds=0.001).status == 504
    assert request.cancelled.is_set()
    timers[0].join()  # an exception in its thread would fail the test
