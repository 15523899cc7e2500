"""The routes for the web page: its files, descriptions of models, attention weights, and ratings of replies."""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from fastapi import HTTPException, Request
from pydantic import Field
from starlette.responses import Response

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.files import CONFIG
from chatbot.attempts.settings import stored_settings
from chatbot.chat.clients import run_while_connected
from chatbot.chat.loading import LoadedModel, ModelCard, attempt_card, checkpoint_version, export_card, pointer_path
from chatbot.chat.page import page_files
from chatbot.chat.server.errors import ApiError, rate_limit_error
from chatbot.chat.server.request_bodies import Body
from chatbot.chat.server.state import server_state
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST, read_manifest
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.ratings import Rating, TooLongError, append_rating, rating_record

log = logging.getLogger(__name__)
MAX_TEXT_CHARACTERS = 20_000
MAX_TURNS = 200
# A thread that computes attention weights, for one request at a time.
ATTENTION_EXECUTOR = ThreadPoolExecutor(1, "attention")

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]


class RepliedQuestion(Body):
    """A question and its reply. The list `history` contains earlier questions and replies in alternation."""

    model: str
    question: Text
    reply: Text
    history: Annotated[list[Text], Field(max_length=MAX_TURNS)] = Field(default=[])


class EarlierRating(Body):
    """A rating that was already recorded, with the time that the server returned for it."""

    rating: Rating
    time: Annotated[str, Field(max_length=40)]


class RatedReply(RepliedQuestion):
    """A reply with a user's rating. If the user rated the reply before, it also contains that rating."""

    rating: Rating
    replaces: EarlierRating | None = None


async def page(request: Request) -> Response:
    """Send the page or one of its files."""
    file = page_files().get(request.scope["path"].removeprefix("/"))
    if file is None:
        raise HTTPException(404)
    if file.headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=file.headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers={**file.headers, "Content-Encoding": "gzip"})
    return Response(file.content, headers=file.headers)


async def describe_models(request: Request) -> dict[str, Any]:
    """List the models with their training data and quality.

    The field `ratings` says whether users can rate replies. `most_characters` is the maximum length of a question.
    """
    state = server_state(request)
    loaded = {**state.models.loaded}  # A copy, because another thread may change the original dictionary.
    descriptions = await asyncio.to_thread(lambda: _describe_models(state.models.directories(), loaded))
    return {"models": descriptions, "ratings": state.ratings is not None, "most_characters": MAX_TEXT_CHARACTERS}


async def attention(body: RepliedQuestion, request: Request) -> dict[str, Any]:
    """Return whether a reply was generated or retrieved, and its attention weights over the words of the question."""
    state = server_state(request)
    name = state.models.resolve_name(body.model)
    # Prefer the stored origin. If it is determined again, new ratings could change the result.
    origin = _find_recent_origin(request, name, body)

    async def compute() -> dict[str, Any]:
        async with state.models.use(name) as model:
            history = body.history[-model.turns :] if model.turns else []
            arguments = model.responder, body.question[:MAX_CHARACTERS], body.reply, history, origin
            return await asyncio.get_running_loop().run_in_executor(ATTENTION_EXECUTOR, _compute_attention, *arguments)

    return await run_while_connected(compute(), state.request_timeout, request.receive)


async def rate(body: RatedReply, request: Request) -> dict[str, Any]:
    """Append a rating of a reply to the ratings file. It replaces any earlier rating of this reply.

    Only ratings of replies that the server sent recently affect later replies.
    """
    state = server_state(request)
    assert state.ratings is not None
    if wait := state.ratings_limit.wait(request.state.client):
        raise rate_limit_error("ratings", wait)
    is_operator = len(state.limits.keys) == 1  # If there is only one API key, its owner is the operator.
    client = None if is_operator else request.state.client
    name = state.models.resolve_name(body.model)
    origin = _find_recent_origin(request, name, body) if state.limits.keys or state.limits.live_ratings else None
    written_to = None if origin is None else origin.question
    exchange = (body.question, body.reply, body.history)
    model = state.models.directories()[name].name
    record = rating_record(*exchange, body.rating, model, client, written_to=written_to)
    earlier = body.replaces
    replaced = None if earlier is None else rating_record(*exchange, earlier.rating, model, client, time=earlier.time)
    try:
        await asyncio.to_thread(append_rating, state.ratings, record, replaced)
    except TooLongError as error:
        raise ApiError(413, str(error), code="ratings") from error
    except UserError as error:
        log.error("%s", error)
        raise ApiError(503, "The rating cannot be recorded; see the server's log", code="ratings") from error
    return {"recorded": True, "time": record["time"]}


def _find_recent_origin(request: Request, model: str, body: RepliedQuestion) -> Origin | None:
    """Return where a reply comes from, or None if the server has not sent this reply recently."""
    return server_state(request).origins.get(hash((model, body.question[:MAX_CHARACTERS], body.reply)))


def _describe_models(directories: Mapping[str, Path], loaded: Mapping[str, LoadedModel]) -> list[dict[str, Any]]:
    """Describe the models, starting with the default model. Unreadable models are skipped.

    A description contains the fields of `ModelCard`, the model's `id` in /v1/models, its `name` for display, the names
    of its training files (`sources`), and the number of earlier messages that it reads with a question (`turns`).
    """
    descriptions = []
    for name, directory in directories.items():
        try:
            if name in loaded:
                card = loaded[name].card
                turns = loaded[name].turns
            else:
                card, turns = _read_card(directory, checkpoint_version(directory))
        except (UserError, OSError) as error:
            log.warning("%s: not shown on the page: %s", name, error)
            continue
        fields = {"id": name, "name": card.display_name(name), "sources": card.sources, "turns": turns}
        descriptions.append({**dataclasses.asdict(card), **fields})
    return descriptions


@functools.lru_cache(maxsize=1000)
def _read_card(directory: Path, version: object) -> tuple[ModelCard, int]:
    """Read the model card of a model that is not loaded, and the number of earlier messages that the model reads.

    The result is cached for each `version`, so a new checkpoint is read again.

    Raises:
        UserError: If the files of the model cannot be read.
    """
    turns = stored_settings(directory / CONFIG).encoding.history
    if (directory / MANIFEST).exists():
        return export_card(read_manifest(directory)), turns
    return attempt_card(directory, read_pointer(pointer_path(directory))["step"]), turns


def _compute_attention(
    responder: TextResponder, question: str, reply: str, history: list[str], origin: Origin | None
) -> dict[str, Any]:
    """Return where a reply comes from, and its attention weights.

    The argument `origin` says where the reply comes from. If it is None, the origin is determined again.

    The result contains these fields:

    - written_to: The question that a retrieved reply answers in the training data; "" for any other reply.
    - rated_good: Whether the reply was retrieved because another user rated it good.
    - question, reply: The words of the question and of the reply.
    - weights: The attention weights, with shape [reply words, question words]. Each row sums to 1. None if the model
      has no attention.
    """
    attention = None
    if responder.source(question, history).ids:
        origin = origin or responder.origin(question, reply, history)
        attention = responder.attention(question, reply, history)
    origin = origin or Origin()
    fields: dict[str, Any] = {
        "written_to": "" if origin.is_rated else origin.question,
        "rated_good": origin.is_rated,
    }
    if attention is None:
        return {**fields, "question": [], "reply": [], "weights": None}
    weights = attention.weights.astype(float).round(4).tolist()
    return {**fields, "question": attention.question, "reply": attention.reply, "weights": weights}
