"""A stand-in for Telegram's Bot API on the loopback, with the methods that the bot calls and their limits."""

import asyncio
import contextlib
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.chat.server.running import running

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": 110201543, "is_bot": True, "first_name": "Talk", "username": "TalkBot"}
USER = {"id": 7, "is_bot": False, "first_name": "Ann"}
MAX_POLL = 0.5  # seconds; Telegram waits as long as the bot asks it to


class StandIn:
    """Answers one bot. failures: (method, HTTP status, parameters) for the next calls of a method."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[tuple[str, int, dict[str, Any]]] = []
        self._updates: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self.url = ""

    def write(self, text: str | None, chat: int = 1, **fields: Any) -> None:
        """Send a message of a user. Names such as @TalkBot and commands become entities, as in Telegram's clients."""
        kind = "private" if chat > 0 else "supergroup"
        with self._changed:
            number = len(self._updates) + 1
            message: dict[str, Any] = {"message_id": 100 + number, "date": int(time.time()), "from": USER}
            message |= {"chat": {"id": chat, "type": kind}, **fields}
            if text is not None:
                message |= {"text": text, "entities": list(entities_of(text))}
            self._updates.append({"update_id": number, "message": message})
            self._changed.notify_all()

    def sent(self, number: int, method: str = "sendMessage", timeout: float = 240) -> list[dict[str, Any]]:
        """Wait for a number of calls of a method, and return their parameters."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._of(method)) >= number, timeout), self.calls
            return self._of(method)

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == method]

    def called(self, token: str, method: str, parameters: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the response to a call."""
        if token != TOKEN:
            return 401, error(401, "Unauthorized")
        with self._changed:
            self.calls.append((method, parameters))
            self._changed.notify_all()
            for failure in self.failures:
                if failure[0] == method:
                    self.failures.remove(failure)
                    return failure[1], error(failure[1], "a failure of the test", **failure[2])
            if method == "getUpdates":
                first = int(parameters.get("offset", 0))
                waits = min(MAX_POLL, float(parameters.get("timeout", 0)))
                self._changed.wait_for(lambda: len(self._updates) >= max(1, first), waits)
                return 200, {"ok": True, "result": [u for u in self._updates if u["update_id"] >= first]}
        if method == "getMe":
            return 200, {"ok": True, "result": BOT}
        if method == "sendMessage":
            text = parameters["text"]
            if not text.strip() or len(text.encode("utf-16-le")) > 2 * 4096:
                return 400, error(400, "Bad Request: message is too long")
            chat = {"id": int(parameters["chat_id"]), "type": "private"}
            return 200, {"ok": True, "result": {"message_id": 1, "date": 1, "chat": chat, "text": text}}
        return 200, {"ok": True, "result": True}


def entities_of(text: str) -> Iterator[dict[str, Any]]:
    for word in re.finditer(r"\S+", text):
        kind = {"@": "mention", "/": "bot_command"}.get(word[0][0])
        if kind is not None:
            offset = len(text[: word.start()].encode("utf-16-le")) // 2
            yield {"type": kind, "offset": offset, "length": len(word[0])}


def error(code: int, description: str, **parameters: Any) -> dict[str, Any]:
    return {"ok": False, "error_code": code, "description": description, "parameters": parameters}


@contextlib.contextmanager
def stand_in() -> Iterator[StandIn]:
    """Serve one bot during the block."""
    api, app = StandIn(), FastAPI()

    @app.post("/bot{token}/{method}")
    async def call(token: str, method: str, request: Request) -> JSONResponse:
        form = urllib.parse.parse_qs((await request.body()).decode())
        parameters = {name: values[0] for name, values in form.items()}
        status, answer = await asyncio.to_thread(api.called, token, method, parameters)
        return JSONResponse(answer, status)

    with running(app) as api.url:
        yield api
