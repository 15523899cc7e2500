"""Starts a bot: a trained chatbot in a chat service."""

import asyncio
import importlib.util
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chatbot.config.bots import BotSettings, TelegramSettings, WebhookSettings
from chatbot.errors import UserError

if TYPE_CHECKING:
    from chatbot.chat.bots.conversations import Conversations

LARGEST_SECRET, SHORTEST_SECRET = 1000, 16
TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")


def telegram(settings: TelegramSettings) -> None:
    """Answer messages on Telegram until a signal."""
    _need("telegram", "python-telegram-bot")
    token = read_secret("--token-file", settings.token_file)
    if not TOKEN.fullmatch(token):
        form = "which is digits, a colon and letters; copy it again"
        raise UserError(f"--token-file {settings.token_file}: it holds no token of Telegram, {form}")
    from chatbot.chat.bots.telegram_bot import application_of, run

    async def answer_until_stopped(conversations: "Conversations") -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        await run(application_of(conversations.answer, token, settings.api_url), stop)

    with opened(settings.bot) as conversations:
        asyncio.run(answer_until_stopped(conversations))


def webhook(settings: WebhookSettings) -> None:
    """Answer signed messages by HTTP until a signal."""
    for module, package in (("uvicorn", "uvicorn~=0.54.0"), ("starlette", "starlette"), ("httptools", "httptools")):
        _need(module, package)
    secret = read_secret("--secret-file", settings.secret_file)
    if len(secret) < SHORTEST_SECRET:
        raise UserError(f"--secret-file {settings.secret_file}: at least {SHORTEST_SECRET} characters are needed")
    import uvicorn

    from chatbot.chat.bots.webhook import Verifier, webhook_app
    from chatbot.chat.server.connection import server_config
    from chatbot.chat.service import listening_socket, url_of

    verifier = Verifier(secret.encode(), Path(settings.seen_file))
    with listening_socket("--listen", *settings.address) as listener, opened(settings.bot) as conversations:
        app = webhook_app(conversations.answer, verifier, settings.callback)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it has stopped
        config = server_config(app, settings.bot.reply_seconds)
        print(f"Answering at {url_of(listener)}/. Ctrl-C exits.", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def opened(settings: BotSettings) -> Iterator["Conversations"]:
    """Load the model, and yield its conversations when a first question was answered. Raises UserError as `load_model`.

    The first answer takes seconds longer: graphs are traced.
    """
    from chatbot.chat.bots.conversations import Conversations
    from chatbot.chat.loading import limit_threads, load_chosen
    from chatbot.chat.service import warm_up
    from chatbot.inference.engine import Engine

    limit_threads()
    model = load_chosen(settings.attempt, settings.export, Path(settings.ratings))
    engine = Engine(model.responder_of(settings.decoding))
    try:
        warm_up(engine, [None])
        yield Conversations(engine.submit, settings, model.card.name, model.card.pairs, model.turns)
    finally:
        engine.close()


def read_secret(flag: str, file: str) -> str:
    """Return the only line of a file. Raises UserError, which does not show it, for a file that has none or others."""
    try:
        with Path(file).open("rb") as secret:
            content = secret.read(LARGEST_SECRET + 1)
    except OSError as error:
        raise UserError(f"{flag} {file}: {error.strerror}; give a file that holds one line of text") from error
    text = content.decode("utf-8-sig", "replace").strip()
    if not text:
        raise UserError(f"{flag} {file}: the file is empty; one line of text is needed")
    if len(content) > LARGEST_SECRET or not text.isprintable() or "\ufffd" in text:
        raise UserError(f"{flag} {file}: one line of text is needed, and nothing else")
    return text


def _need(module: str, package: str) -> None:
    """Raise UserError if a package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{package.partition('~')[0]} is not installed; run `make serve`, or `pip install {package}`")
