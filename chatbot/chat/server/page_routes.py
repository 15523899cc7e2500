"""What the page at / asks for beside OpenAI's protocol: its files, the models, attention and ratings."""

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
from chatbot.chat.loading import LoadedModel, ModelCard, card_of_attempt, card_of_export, pointer_of, version_of
from chatbot.chat.page import page_files
from chatbot.chat.server.errors import ApiError, too_many
from chatbot.chat.server.request_bodies import Body
from chatbot.chat.server.state import state_of
from chatbot.chat.service import while_waited_for
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST, read_manifest
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.ratings import Rating, TooLongError, append_rating, rating_of

log = logging.getLogger(__name__)
MOST_CHARACTERS = 20_000
MOST_TURNS = 200
ONE_AT_A_TIME = ThreadPoolExecutor(1, "attention")  # beside the engine

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class RepliedQuestion(Body):
    """A question and a reply to it. history: the turns before the question, alternately question and reply."""

    model: str
    question: Text
    reply: Text
    history: Annotated[list[Text], Field(max_length=MOST_TURNS)] = Field(default=[])


class EarlierRating(Body):
    """A rating that was recorded before. time: as the server answered."""

    rating: Rating
    time: Annotated[str, Field(max_length=40)]


class RatedReply(RepliedQuestion):
    """A reply and what a user thinks of it. replaces: what the same user thought of it before."""

    rating: Rating
    replaces: EarlierRating | None = None


async def page(request: Request) -> Response:
    """Send the page, or a file that it loads."""
    file = page_files().get(request.scope["path"].removeprefix("/"))
    if file is None:
        raise HTTPException(404)
    if file.headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=file.headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers={**file.headers, "Content-Encoding": "gzip"})
    return Response(file.content, headers=file.headers)


async def describe_models(request: Request) -> dict[str, Any]:
    """List the models with what they were trained on, and their quality.

    ratings: whether ratings are collected. most_characters: of a text that the other routes of the page take.
    """
    state = state_of(request)
    loaded = {**state.models.loaded}  # it changes in this thread
    described = await asyncio.to_thread(lambda: _described_models(state.models.directories(), loaded))
    return {"models": described, "ratings": state.ratings is not None, "most_characters": MOST_CHARACTERS}


async def attention(body: RepliedQuestion, request: Request) -> dict[str, Any]:
    """Show where a reply comes from, and which words of the question each of its words looked at."""
    state = state_of(request)
    name = state.models.name_of(body.model)
    origin = _given(request, name, body)  # a rating may have changed the pairs meanwhile

    async def shown() -> dict[str, Any]:
        async with state.models.use(name) as model:
            history = body.history[-model.turns :] if model.turns else []
            asked = model.responder, body.question[:MAX_CHARACTERS], body.reply, history, origin
            return await asyncio.get_running_loop().run_in_executor(ONE_AT_A_TIME, _attention, *asked)

    return await while_waited_for(shown(), state.request_timeout, request.receive)


async def rate(body: RatedReply, request: Request) -> dict[str, Any]:
    """Append a rated reply to the file of ratings, in place of an earlier rating of it.

    What the server is not known to have replied is recorded, too, but is never looked up.
    """
    state = state_of(request)
    assert state.ratings is not None
    if wait := state.ratings_limit.wait(request.state.client):
        raise too_many("ratings", wait)
    is_operator = len(state.limits.keys) == 1  # the holder of the only key
    client = None if is_operator else request.state.client
    name = state.models.name_of(body.model)
    origin = _given(request, name, body) if state.limits.keys or state.limits.live_ratings else None
    written_to = None if origin is None else origin.question
    replied = (body.question, body.reply, body.history)
    model = state.models.directories()[name].name
    record = rating_of(*replied, body.rating, model, client, written_to=written_to)
    earlier = body.replaces
    replaced = None if earlier is None else rating_of(*replied, earlier.rating, model, client, time=earlier.time)
    try:
        await asyncio.to_thread(append_rating, state.ratings, record, replaced)
    except TooLongError as error:
        raise ApiError(413, str(error), code="ratings") from error
    except UserError as error:
        log.error("%s", error)
        raise ApiError(503, "The rating cannot be recorded; the server's log says why", code="ratings") from error
    return {"recorded": True, "time": record["time"]}


def _given(request: Request, model: str, body: RepliedQuestion) -> Origin | None:
    """Return where a reply comes from; None if the server has not given it, or not lately."""
    return state_of(request).origins.get((model, body.question[:MAX_CHARACTERS], body.reply))


def _described_models(directories: Mapping[str, Path], loaded: Mapping[str, LoadedModel]) -> list[dict[str, Any]]:
    """Return the models that can be described, with their cards, the default one first. loaded: those in memory.

    id: as in /v1/models. name, sources: for readers. turns: the number of turns that it reads.
    """
    described = []
    for name, directory in directories.items():
        try:
            if name in loaded:
                card = loaded[name].card
                turns = loaded[name].turns
            else:
                card, turns = _card_of(directory, version_of(directory))
        except (UserError, OSError) as error:
            log.warning("%s: not on the page: %s", name, error)
            continue
        shown = {"id": name, "name": card.name_for_readers(name), "sources": card.sources, "turns": turns}
        described.append({**dataclasses.asdict(card), **shown})
    return described


@functools.lru_cache(maxsize=1000)
def _card_of(directory: Path, version: object) -> tuple[ModelCard, int]:
    """Return the card of a model that is not loaded, and the number of turns that it reads.

    version: with it, the files may have changed. Raises UserError.
    """
    turns = stored_settings(directory / CONFIG).encoding.history
    if (directory / MANIFEST).exists():
        return card_of_export(read_manifest(directory)), turns
    return card_of_attempt(directory, read_pointer(pointer_of(directory))["step"]), turns


def _attention(
    responder: TextResponder, question: str, reply: str, history: list[str], origin: Origin | None
) -> dict[str, Any]:
    """Return where a reply comes from, and its attention. origin: None if it is not known.

    written_to: the training question that the reply was written to; "": there is none. rated_good: whether the reply
    was looked up since somebody rated it good, after a message that nobody else is shown. weights: [reply, question],
    each row adds up to 1; None if none is shown.
    """
    found = None
    if responder.source(question, history):
        origin = origin or responder.origin(question, reply, history)
        found = responder.attention(question, reply, history)
    origin = origin or Origin()
    shown: dict[str, Any] = {
        "written_to": "" if origin.is_rated else origin.question,
        "rated_good": origin.is_rated,
    }
    if found is None:
        return {**shown, "question": [], "reply": [], "weights": None}
    weights = found.weights.astype(float).round(4).tolist()
    return {**shown, "question": found.question, "reply": found.reply, "weights": weights}
