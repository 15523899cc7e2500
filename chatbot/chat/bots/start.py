"""Starts the Telegram bot: a trained chatbot in a chat service."""

import asyncio
import contextlib
import importlib.util
import re
import signal
from pathlib import Path

from chatbot.config.chat import BotSettings
from chatbot.errors import UserError

LARGEST_FILE = 1000  # bytes, of the token
TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")


def telegram(settings: BotSettings) -> None:
    """Answer messages on Telegram until a signal. Raises UserError as `read_token` and `load_chosen`."""
    if importlib.util.find_spec("telegram") is None:
        package = "python-telegram-bot"
        raise UserError(f"{package} is not installed; run `make serve`, or `pip install {package}`")
    token = read_token(settings.token_file)
    from chatbot.chat.bots.conversations import Conversations
    from chatbot.chat.bots.telegram_bot import application_of, run
    from chatbot.chat.loading import limit_threads, load_chosen

    async def answer_until_stopped(conversations: Conversations) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        await run(application_of(conversations.answer, token, settings.api_url), stop)

    limit_threads()
    model = load_chosen(settings.attempt, settings.export, settings.decoding, Path(settings.ratings))
    with contextlib.closing(model.engine) as engine:
        engine.warm_up()
        conversations = Conversations(engine.submit, settings, model.card.name, model.card.pairs, model.turns)
        asyncio.run(answer_until_stopped(conversations))


def read_token(file: str) -> str:
    """Return the token in a file. Raises UserError, which does not show it, for a file that holds anything else."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"--token-file {file}: {error.strerror}; give a file that holds one line of text") from error
    text = content.decode("utf-8-sig", "replace").strip()
    if not text:
        raise UserError(f"--token-file {file}: the file is empty; one line of text is needed")
    if len(content) > LARGEST_FILE or not TOKEN.fullmatch(text):
        form = "which is digits, a colon and letters; copy it again"
        raise UserError(f"--token-file {file}: it holds no token of Telegram, {form}")
    return text
