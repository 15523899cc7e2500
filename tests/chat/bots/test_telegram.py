"""The Telegram bot against a stand-in of its API on the loopback."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from telegram.error import NetworkError
from telegram.ext import CallbackContext

from chatbot.chat.bots import telegram_bot
from chatbot.chat.bots.conversations import Answer, RefusedError
from chatbot.chat.bots.telegram_bot import ONLY_TEXT, build_application, run
from chatbot.errors import UserError
from tests.chat.bots.telegram_stand_in import BOT, TOKEN, USER, StandIn, stand_in


@pytest.fixture
def api() -> Iterator[StandIn]:
    with stand_in() as api:
        yield api


def serve(api: StandIn, answer: Answer, session: Callable[[], Any], token: str = TOKEN) -> Any:
    """Run the bot while a blocking session runs in a thread. Return the result of the session."""

    async def both() -> Any:
        stop = asyncio.Event()
        bot = asyncio.create_task(run(build_application(answer, token, api.url + "/"), stop))
        result = asyncio.create_task(asyncio.to_thread(session))
        await asyncio.wait({bot, result}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await bot
        return await result

    return asyncio.run(both())


async def repeat(conversation: str, text: str) -> str:
    return f"{conversation}: {text}"


def test_messages_of_a_chat(api: StandIn) -> None:
    """Replies are plain text within Telegram's limit. The reason of a refusal is sent unless it is empty."""

    async def answer(conversation: str, text: str) -> str:
        if text in ("", "wait"):
            raise RefusedError(text)
        return "a" * 5000 if text == "long" else f"{conversation}: {text}"

    def session() -> list[dict[str, Any]]:
        for number, text in enumerate(("*你好* <b>_😀_", "wait", "long"), 1):
            api.write("@TalkBot")  # its text is empty
            api.write(text)
            api.sent(number)
        api.write(None, location={"longitude": 1.0, "latitude": 1.0})
        return api.sent(4)

    messages = serve(api, answer, session)
    texts = ["telegram/1: *你好* <b>_😀_", "wait", "a" * 4096, ONLY_TEXT]
    assert [message["text"] for message in messages] == texts
    assert messages[0]["chat_id"] == "1"
    assert messages[0].keys().isdisjoint(["parse_mode", "reply_parameters"])
    assert json.loads(api.sent(1, "getUpdates")[0]["allowed_updates"]) == ["message"]


def test_in_groups_only_messages_for_the_bot_are_answered(api: StandIn) -> None:
    to_bot = {"message_id": 5, "date": 1, "chat": {"id": -9, "type": "supergroup"}, "from": BOT, "text": "hi"}
    ignored = ["hello all", "@TalkBotany hi", "@Ann hi", "/reset", "/reset@OtherBot"]
    answered = ["@talkbot 1", "😀 2 @TalkBot", "/reset@TalkBot 3", "@TalkBotany @TalkBot 4"]

    def session() -> list[dict[str, Any]]:
        for text in ignored:
            api.write(text, chat=-9)
        api.write("by a bot @TalkBot", chat=-9, **{"from": {**USER, "is_bot": True}})
        administrator = {"from": {**USER, "is_bot": True}, "sender_chat": {"id": -9, "type": "supergroup"}}
        api.write("reply to another", chat=-9, reply_to_message={**to_bot, "from": USER})
        api.write(None, chat=-9, reply_to_message=to_bot, sticker=None)
        for number, text in enumerate(answered, start=1):
            api.write(text, chat=-9, **(administrator if number == 1 else {}))  # who is anonymous
            api.sent(number)
        api.write("5", chat=-9, reply_to_message=to_bot)
        api.sent(5)
        api.write("6 @TalkBot", chat=-9, is_topic_message=True, message_thread_id=44)
        return api.sent(6)

    messages = serve(api, repeat, session)
    group = "telegram/-9: "
    assert [message["text"] for message in messages] == [
        *(group + text for text in ("1", "😀 2", "/reset 3", "@TalkBotany  4", "5")),
        "telegram/-9/44: 6",
    ]
    quoted = json.loads(messages[0]["reply_parameters"])
    assert (quoted["message_id"], quoted["allow_sending_without_reply"]) == (
        109,
        True,
    )  # it may be deleted
    assert messages[5]["message_thread_id"] == "44"


def test_errors_of_the_network_are_retried(
    api: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for polling and for sending. A refused message is not sent again, and replies keep their order."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def short_sleep(seconds: float) -> None:
        waits.append(seconds)
        await sleep(min(seconds, 0.01))

    monkeypatch.setattr(telegram_bot.asyncio, "sleep", short_sleep)
    api.failures += [("getUpdates", 502, {})]
    api.failures += [("sendMessage", 502, {}), ("sendMessage", 429, {"retry_after": 3}), ("sendMessage", 400, {})]
    api.failures += [("sendMessage", 502, {})] * telegram_bot.MAX_ATTEMPTS

    async def immediate(conversation: str, text: str) -> str:
        return text

    def session() -> list[str]:
        for text in ("1", "2", "3"):
            api.write(text)
        return [message["text"] for message in api.sent(4 + telegram_bot.MAX_ATTEMPTS)]

    assert serve(api, immediate, session) == ["1", "1", "1", *["2"] * telegram_bot.MAX_ATTEMPTS, "3"]
    assert {1.0, 3.0} <= set(waits)
    printed = capsys.readouterr().err
    assert printed.count("error: Telegram: ") == 3  # getUpdates, the refused message, and the one that was given up
    assert TOKEN not in printed


def test_stop_finishes_running_replies(api: StandIn) -> None:
    begun = threading.Event()

    async def slow(conversation: str, text: str) -> str:
        begun.set()
        await asyncio.sleep(0.3)
        return "late"

    def session() -> None:
        api.write("1")
        assert begun.wait(240)

    serve(api, slow, session)
    assert [message["text"] for message in api.sent(1, timeout=0)] == ["late"]


def test_failed_start_is_one_line_without_the_token(api: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = TOKEN[:-1] + "x"
    with pytest.raises(UserError, match="Telegram rejected the token") as caught:
        serve(api, repeat, lambda: None, token=wrong)
    assert wrong not in f"{caught.value}{capsys.readouterr()}"
    api.failures.append(("getMe", 502, {}))
    with pytest.raises(UserError, match=r"^Telegram cannot be reached \(.*\); check the network") as caught:
        serve(api, repeat, lambda: None)
    assert TOKEN not in str(caught.value)


def test_reports_of_errors_do_not_show_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    bot = build_application(repeat, TOKEN, "http://127.0.0.1:1")
    url = f"http://127.0.0.1:1/bot{TOKEN}/getMe http://127.0.0.1:1/bot{TOKEN.replace(':', '%3A')}/getMe"
    (report,) = bot.error_handlers

    async def handled() -> None:
        context = CallbackContext(bot)
        context.error = NetworkError(f"{url}\n\x1b[2J")
        await report(None, context)

    asyncio.run(handled())
    printed = capsys.readouterr().err
    assert TOKEN.partition(":")[2] not in printed
    assert printed.count("(the token)") == 2
    assert "\x1b" not in printed
    for name in ("httpx", "httpcore.http11"):
        logging.getLogger(name).error("POST https://api.telegram.org/bot%s/getMe", TOKEN)
    logging.getLogger("telegram.ext").warning("the token `%s` was rejected", TOKEN)
    try:
        raise ValueError(TOKEN)
    except ValueError:
        logging.getLogger("telegram.Bot").exception("failed")
    assert TOKEN not in capsys.readouterr().err
