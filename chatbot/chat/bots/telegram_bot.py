"""Receives and answers Telegram messages with the library python-telegram-bot, using long polling."""

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
# Maps conversation ids to locks. Only conversations with unsent replies have an entry.
Locks = weakref.WeakValueDictionary[str, asyncio.Lock]

# The maximum number of messages to answer at the same time. Further messages wait in a queue.
CONCURRENCY = 64
# The maximum number of attempts to send a reply.
MAX_ATTEMPTS = 4
ONLY_TEXT = "I can read only text. 我只能看懂文字。"
# With this setting, `RetryAfter.retry_after` is a timedelta. The old type, an int, causes a deprecation warning.
os.environ.setdefault("PTB_TIMEDELTA", "true")


def build_application(answer: Answer, token: str, api_url: str) -> App:
    """Create the python-telegram-bot application of a bot. Start it with `run`."""
    # At their default level, these loggers print URLs, which contain the secret token.
    for name in ("telegram", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    url = api_url.rstrip("/")
    builder = ApplicationBuilder().token(token).base_url(f"{url}/bot").base_file_url(f"{url}/file/bot")
    application = builder.concurrent_updates(CONCURRENCY).build()

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
    """Answer messages until `stop` is set, then send the pending replies and return.

    Raises:
        UserError: If Telegram rejects the token, or if it cannot be reached at startup.
    """
    token = application.bot.token
    try:
        await application.initialize()
        assert application.updater is not None
        await application.updater.start_polling(
            bootstrap_retries=-1, allowed_updates=[Update.MESSAGE], error_callback=lambda error: _report(error, token)
        )
        await application.start()
        print(f"Answering as @{application.bot.username} on Telegram; press Ctrl-C to stop", file=sys.stderr)
        await stop.wait()
        await application.updater.stop()
        await application.stop()
    except InvalidToken:
        raise UserError("--token-file: Telegram rejected the token; request a new token from @BotFather") from None
    except TelegramError as error:
        reason = redact(visible(str(error)), token)
        remedy = "check the network, HTTPS_PROXY and --api-url"
        raise UserError(f"Telegram cannot be reached ({reason}); {remedy}") from None
    finally:
        await application.shutdown()
        await application.bot.shutdown()  # If its initialisation failed, the application does not do this itself.


async def _handle(message: Message, answer: Answer, locks: Locks) -> None:
    """Answer a message. Ignore messages from other bots, and group messages that do not address this bot."""
    if message.from_user is not None and message.from_user.is_bot and message.sender_chat is None:
        return  # Anonymous administrators of a group also appear as bots, but their messages have a sender_chat.
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
    # There must be no `await` before this lock, so that replies are sent in the order in which they were generated.
    async with locks.setdefault(conversation, asyncio.Lock()):
        if reply:
            await _send(message, reply[: MessageLimit.MAX_TEXT_LENGTH])


def text_for_bot(message: Message) -> str | None:
    """Return the text of a message without the bot's name, or None if the message does not address the bot.

    In a group, a message addresses the bot if it contains "@name" or if it replies to a message of the bot.
    """
    bot = message.get_bot()
    parent = message.reply_to_message
    name = re.compile(rf"@{re.escape(bot.username)}(?!\w)", re.IGNORECASE)
    text, mentions = name.subn("", message.text or "")
    is_reply = parent is not None and parent.from_user is not None and parent.from_user.id == bot.id
    return text.strip() if mentions or is_reply or message.chat.type == ChatType.PRIVATE else None


async def _send(message: Message, text: str) -> None:
    """Send a text to the chat that contains the message. In a group, quote the message.

    Sending is retried after a network error. It is not retried after a timeout, because the text may have arrived.
    """
    quote = None
    if message.chat.type != ChatType.PRIVATE:
        quote = ReplyParameters(message.message_id, allow_sending_without_reply=True)
    seconds = 1.0
    for number in range(1, MAX_ATTEMPTS + 1):
        try:
            await message.reply_text(text, parse_mode=None, reply_parameters=quote)
            return
        except (BadRequest, TimedOut):  # Subclasses of NetworkError that must not be retried.
            raise
        except (NetworkError, RetryAfter) as error:
            if number == MAX_ATTEMPTS:
                raise
            delay = error.retry_after if isinstance(error, RetryAfter) else seconds
            await asyncio.sleep(delay.total_seconds() if isinstance(delay, datetime.timedelta) else delay)
            seconds *= 2


def _report(error: BaseException | None, token: str) -> None:
    """Print an error on one line. The token and the user's message are not printed."""
    text = redact(visible(str(error)), token) if isinstance(error, TelegramError) else ""
    print(f"error: Telegram: {type(error).__name__}: {text}".rstrip(": "), file=sys.stderr)


def redact(text: str, token: str) -> str:
    """Remove the secret token, also in its URL-encoded form, from a text."""
    return text.replace(token, "(the token)").replace(urllib.parse.quote(token), "(the token)")
