"""A stand-in for Telegram's Bot API on loopback: its methods that a bot calls, with its limits."""

import contextlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": 110201543, "is_bot": True, "first_name": "Talk", "username": "TalkBot"}
USER = {"id": 7, "is_bot": False, "first_name": "Ann"}
LONGEST_POLL = 0.5  # seconds; Telegram waits as long as the bot asks it to


class StandIn:
    """Serves one bot. failures: (method, HTTP status, parameters) that the next calls of a method get."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[tuple[str, int, dict[str, Any]]] = []
        self._updates: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def write(self, text: str | None, chat: int = 1, **fields: Any) -> None:
        """A user writes a message. A name such as @TalkBot or a command becomes an entity, as in Telegram's clients."""
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
        """The parameters of the calls of a method, when there are this many of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._of(method)) >= number, timeout), self.calls
            return self._of(method)

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == method]

    def called(self, token: str, method: str, parameters: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the body of the response to a call."""
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
                waits = min(LONGEST_POLL, float(parameters.get("timeout", 0)))
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


def handler_of(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5.0

        def do_POST(self) -> None:
            _, bot, method = self.path.split("/")
            form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            parameters = {name: values[0] for name, values in urllib.parse.parse_qs(form).items()}
            status, answer = stand_in.called(bot.removeprefix("bot"), method, parameters)
            body = json.dumps(answer).encode()
            with contextlib.suppress(OSError):  # the bot was stopped
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler
