"""Real clients: OpenAI's package, LangChain's on top of it, and the webhook in examples/platform."""

import asyncio
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import Limits
from chatbot.inference.request import Piece, Question
from tests.chat.server.fake_models import FakeEngine, echo, fake_models
from tests.chat.server.running import running
from tests.commands import ROOT

KEY = "key-1"
HELLO: Any = {"model": "a", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "你好吗"}]}
FAILING = "a text whose reply fails"


def answer(question: Question) -> Any:
    """Reply with the question, or fail within the reply."""
    return [Piece(0, "你"), RuntimeError("secret")] if question.text == FAILING else echo(question)


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(answer)


@pytest.fixture(scope="module")
def url(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = fake_models({"a": engine, "b": FakeEngine(most=0)}, tmp_path_factory.mktemp("models"))
    with running(create_app(models, Limits(keys=(b"key-0", KEY.encode())))) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [(model.id, model.object, model.owned_by) for model in models] == [
        (name, "model", "chatbot") for name in ("a", "b")
    ]
    assert models[0].created > 10**9
    assert client.models.retrieve("b") == models[1]


def test_replies(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**HELLO, n=2, max_completion_tokens=1, logprobs=True, top_logprobs=2)
    assert [(choice.message.content, choice.finish_reason) for choice in made.choices] == [("你好吗", "length")] * 2
    assert made.choices[0].logprobs is not None
    tokens = made.choices[0].logprobs.content or []
    assert [(token.token, len(token.top_logprobs)) for token in tokens] == [("你", 2), ("好吗", 2)]
    assert (made.usage and made.usage.total_tokens, bool(made._request_id)) == (5, True)
    with client.chat.completions.stream(**HELLO, logprobs=True, stream_options={"include_usage": True}) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == "你好吗"
        final = stream.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("你好吗", "stop")
    assert final.usage is not None
    prompts = client.completions.create(model="a", prompt=["你好", "吗"], n=2, logprobs=1)
    assert [choice.text for choice in prompts.choices] == ["你好", "你好", "吗", "吗"]
    prompt = client.completions.create(model="a", prompt="你好", stream=True)
    assert "".join(chunk.choices[0].text for chunk in prompt) == "你好"


def test_concurrent_requests_get_their_own_replies(url: str) -> None:
    async def together() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:

            async def one(number: int) -> str | None:
                messages: Any = [{"role": "user", "content": f"你好{number}"}]
                if number % 2:
                    made = await client.chat.completions.create(model="a", messages=messages)
                    return made.choices[0].message.content
                stream = await client.chat.completions.create(model="a", messages=messages, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(16)))

    assert asyncio.run(together()) == [f"你好{number}" for number in range(16)]


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.RateLimitError) as busy:
        client.chat.completions.create(**{**HELLO, "model": "b"})
    assert busy.value.response.headers["retry-after"] == "1"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**HELLO, extra_body={"beam_size": 99})
    assert (bad.value.param, bad.value.type) == ("beam_size", "invalid_request_error")
    with pytest.raises(openai.APIError, match="The server failed"):
        [*client.completions.create(model="a", prompt=FAILING, stream=True)]


def test_langchain(url: str, engine: FakeEngine) -> None:
    chat = ChatOpenAI(base_url=url, api_key=KEY, model="a", temperature=0.5, stop_sequences=["。"])  # type: ignore[arg-type]
    messages = [SystemMessage("s"), HumanMessage("一"), AIMessage("二"), HumanMessage("三")]
    assert chat.invoke(messages).content == "三"
    asked = engine.questions[-1]
    assert (asked.history, asked.stop, asked.decoding is None) == (("一", "二"), ("。",), False)
    assert "".join(str(chunk.content) for chunk in chat.stream(messages)) == "三"
    assert [message.content for message in chat.batch(["一", "二"])] == ["一", "二"]


def test_the_webhook(url: str, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers signed messages, with a separate history for each conversation."""
    (tmp_path / "api-keys").write_text(f"{KEY}\nanother\n")
    (tmp_path / "webhook-secret").write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    program: dict[str, Any] = {"__name__": "program"}
    exec((ROOT / "examples/platform/webhook.py").read_text("utf-8"), program)
    program["API"] = f"{url}/chat/completions"

    def post(conversation: str, text: str, secret: bytes = b"secret") -> httpx.Response:
        body = json.dumps({"conversation": conversation, "text": text}).encode()
        headers = {"X-Signature": hmac.new(secret, body, "sha256").hexdigest()} if secret else {}
        return httpx.post(f"http://127.0.0.1:{server.server_port}/bot", content=body, headers=headers, timeout=240)

    with ThreadingHTTPServer(("127.0.0.1", 0), program["Webhook"]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            asked = len(engine.questions)
            replies = [post(*message).json() for message in [("ann", "一"), ("bob", "一"), *([("ann", "二")] * 4)]]
            refused = [post("ann", "三", secret).status_code for secret in (b"wrong", b"")]
            failed = post("ann", FAILING)
        finally:
            server.shutdown()
            thread.join()
    assert replies == [{"reply": text} for text in "一一二二二二"]
    assert (refused, failed.status_code) == ([401, 401], 503)
    *questions, _ = engine.questions[asked:]
    assert [question.history for question in questions[:3]] == [(), (), ("一", "一")]
    assert [question.repeats for question in questions[:2]] == [0, 0]
    assert [message["content"] for message in program["turns"]["ann"]] == ["二"] * 6
