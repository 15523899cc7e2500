"""The adapter for Telegram: long polling by python-telegram-bot. See https://core.telegram.org/bots/api."""

import asyncio
import datetime
import logging
import os
import re
import sys
import urllib.parse
import weakref
from typing import Any

from telegram import Message, ReplyParameters, Update
from telegram.constants import ChatType, MessageLimit
from telegram.error import BadRequest, InvalidToken, NetworkError, RetryAfter, TelegramError, TimedOut
from telegram.ext import Application, ApplicationBuilder, CallbackContext, MessageHandler, filters

from chatbot.chat.bots.conversations import Answer, RefusedError
from chatbot.display import visible
from chatbot.errors import UserError

App = Application[Any, Any, Any, Any, Any, Any]
Locks = weakref.WeakValueDictionary[str, asyncio.Lock]  # of conversations in which a reply is sent

CONCURRENT = 64  # messages that are answered at once; others wait in the library's queue
SENDS = 4  # of a reply, the first one included
ONLY_TEXT = "I can read only text. 我只能看懂文字。"
# The library then gives the seconds of RetryAfter as timedelta, without a warning that it will.
os.environ.setdefault("PTB_TIMEDELTA", "true")


def application_of(answer: Answer, token: str, api_url: str) -> App:
    """Return the application of a bot, which `run` starts."""
    # They log the token, in URLs and messages; `_report` says what fails.
    for name in ("telegram", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    url = api_url.rstrip("/")
    builder = ApplicationBuilder().token(token).base_url(f"{url}/bot").base_file_url(f"{url}/file/bot")
    application = builder.concurrent_updates(CONCURRENT).build()

    locks: Locks = weakref.WeakValueDictionary()

    async def handle(update: Update, context: "CallbackContext[Any, Any, Any, Any]") -> None:
        assert update.message is not None
        await _handle(update.message, answer, locks)

    async def report(update: object, context: "CallbackContext[Any, Any, Any, Any]") -> None:
        _report(context.error, token)

    application.add_handler(MessageHandler(filters.UpdateType.MESSAGE & ~filters.StatusUpdate.ALL, handle))
    application.add_error_handler(report)
    return application


async def run(application: App, stop: asyncio.Event) -> None:
    """Answer messages until `stop` is set; then answer those that have arrived. The library retries after errors.

    Raises UserError for a token that Telegram refuses, and if Telegram cannot be reached at the start.
    """
    token = application.bot.token
    try:
        await application.initialize()
        assert application.updater is not None
        await application.updater.start_polling(
            bootstrap_retries=-1, allowed_updates=[Update.MESSAGE], error_callback=lambda error: _report(error, token)
        )
        await application.start()
        print(f"Answering as @{application.bot.username} on Telegram. Ctrl-C exits.", file=sys.stderr, flush=True)
        await stop.wait()
        await application.updater.stop()
        await application.stop()
    except InvalidToken:
        raise UserError("--token-file: Telegram refuses this token; get a new one from @BotFather") from None
    except TelegramError as error:
        reason = redacted(visible(str(error)), token)
        remedy = "check the network, HTTPS_PROXY and --api-url"
        raise UserError(f"Telegram cannot be reached ({reason}); {remedy}") from None
    finally:
        await application.shutdown()
        await application.bot.shutdown()  # also if it is not initialised


async def _handle(message: Message, answer: Answer, locks: Locks) -> None:
    """Answer a message, unless it is from a bot, or of a group and not for this bot."""
    if message.from_user is not None and message.from_user.is_bot and message.sender_chat is None:
        return  # with a sender_chat, it is of an anonymous administrator
    text = text_for_bot(message)
    if text is None:
        return
    if message.text is None:
        if message.chat.type == ChatType.PRIVATE:
            await _send(message, ONLY_TEXT)
        return
    topic = f"/{message.message_thread_id}" if message.is_topic_message else ""
    conversation = f"telegram/{message.chat.id}{topic}"
    try:
        reply = await answer(conversation, text)
    except RefusedError as error:
        reply = str(error)
    # Replies are sent in the order in which they are found: nothing is awaited before the lock.
    async with locks.setdefault(conversation, asyncio.Lock()):
        if reply:
            await _send(message, reply[: MessageLimit.MAX_TEXT_LENGTH])


def text_for_bot(message: Message) -> str | None:
    """Return the text of a message without the bot's name; None if it is of a group and not for the bot.

    A message of a group is for the bot if it has the bot's name, as in "@name" and "/reset@name", or replies to it.
    """
    bot = message.get_bot()
    replied = message.reply_to_message
    name = re.compile(rf"@{re.escape(bot.username)}(?!\w)", re.IGNORECASE)
    text, number = name.subn("", message.text or "")
    is_reply = replied is not None and replied.from_user is not None and replied.from_user.id == bot.id
    return text.strip() if number or is_reply or message.chat.type == ChatType.PRIVATE else None


async def _send(message: Message, text: str) -> None:
    """Send a text, no markup, in the chat of a message; in a group, as a reply to the message.

    It is sent again after errors of the network, but not after a timeout, when it may have arrived.
    """
    quoted = None
    if message.chat.type != ChatType.PRIVATE:
        quoted = ReplyParameters(message.message_id, allow_sending_without_reply=True)
    seconds = 1.0
    for number in range(1, SENDS + 1):
        try:
            await message.reply_text(text, parse_mode=None, reply_parameters=quoted)
            return
        except (BadRequest, TimedOut):  # both are an error of the network for the library
            raise
        except (NetworkError, RetryAfter) as error:
            if number == SENDS:
                raise
            asked = error.retry_after if isinstance(error, RetryAfter) else seconds
            await asyncio.sleep(asked.total_seconds() if isinstance(asked, datetime.timedelta) else asked)
            seconds *= 2


def _report(error: BaseException | None, token: str) -> None:
    """Print an error of Telegram or of the network, one line, without the message that it is about and the token."""
    text = redacted(visible(str(error)), token) if isinstance(error, TelegramError) else ""
    print(f"error: Telegram: {type(error).__name__}: {text}".rstrip(": "), file=sys.stderr, flush=True)


def redacted(text: str, token: str) -> str:
    """Return a text without the token, also as it is written in URLs."""
    return text.replace(token, "(the token)").replace(urllib.parse.quote(token, safe=""), "(the token)")
