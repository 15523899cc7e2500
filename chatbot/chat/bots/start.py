"""Starts the Telegram bot."""

import asyncio
import contextlib
import importlib.util
import re
import signal
from pathlib import Path

from chatbot.config.chat import BotSettings
from chatbot.errors import UserError

MAX_FILE_BYTES = 1000
TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")


def telegram(settings: BotSettings) -> None:
    """Answer messages on Telegram until the process receives SIGINT or SIGTERM.

    Raises:
        UserError: If a package is missing, or if the token or the model is missing or invalid.
    """
    if importlib.util.find_spec("telegram") is None:
        package = "python-telegram-bot"
        raise UserError(f"{package} is not installed; run `make install-serve` or `pip install {package}`")
    token = read_token(settings.token_file)
    from chatbot.chat.bots.conversations import Conversations
    from chatbot.chat.bots.telegram_bot import build_application, run
    from chatbot.chat.loading import limit_threads, load_chosen

    async def answer_until_stopped(conversations: Conversations) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        await run(build_application(conversations.answer, token, settings.api_url), stop)

    limit_threads()
    model = load_chosen(settings.attempt, settings.export, settings.decoding, Path(settings.ratings))
    with contextlib.closing(model.engine) as engine:
        engine.warm_up()
        conversations = Conversations(engine.submit, settings, model.card.name, model.card.pairs, model.turns)
        asyncio.run(answer_until_stopped(conversations))


def read_token(file: str) -> str:
    """Read the token from a file. Raises UserError if the file is invalid. The error does not reveal the content."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"--token-file {file}: {error.strerror}; the file must contain the token on one line"
        ) from error
    text = content.decode("utf-8-sig", "replace").strip()
    if not text:
        raise UserError(f"--token-file {file}: the file is empty; write the token into it")
    if len(content) > MAX_FILE_BYTES or not TOKEN.fullmatch(text):
        expected = "expected digits, a colon and letters; copy the token again"
        raise UserError(f"--token-file {file}: the file does not contain a Telegram token; {expected}")
    return text
