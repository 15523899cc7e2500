"""/v1/models."""

import asyncio
from pathlib import Path
from typing import Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel

from chatbot.chat.server.model_directories import pointer_of
from chatbot.chat.server.problems import ERROR_RESPONSES
from chatbot.chat.server.state import state_of


class ModelObject(BaseModel):
    """A model. created: when its checkpoint was written, in seconds since 1970."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "chatbot"


class ModelList(BaseModel):
    """All models, the default one first."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


def add_model_routes(app: FastAPI) -> None:
    """Add the routes that list models."""

    @app.get("/v1/models", tags=["models"], responses=ERROR_RESPONSES)
    async def list_models(request: Request) -> ModelList:
        """List the models."""
        models = await asyncio.to_thread(state_of(request).models.directories)
        return ModelList(data=[_object(name, directory) for name, directory in models.items()])

    @app.get("/v1/models/{name:path}", tags=["models"], responses=ERROR_RESPONSES)
    async def show_model(request: Request, name: str) -> ModelObject:
        """Show a model."""
        models = state_of(request).models
        found = models.name_of(name)
        return _object(found, models.directories()[found])


def _object(name: str, directory: Path) -> ModelObject:
    try:
        created = int(pointer_of(directory).stat().st_mtime)
    except OSError:  # the attempt was removed a moment ago
        created = 0
    return ModelObject(id=name, created=created)
