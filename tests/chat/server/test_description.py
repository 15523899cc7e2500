"""Conformity of the server to its OpenAPI description, for requests that schemathesis generates."""

import json

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    status_code_conformance,
)

from chatbot.chat.server.app import create_app
from tests.chat.server.fake_models import FakeEngine, fake_models, served

CHECKS = [schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance]
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
REPLIES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OF_THE_PAGE = "/chat/attention", "/chat/ratings"


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> schemathesis.BaseSchema:
    folder = tmp_path_factory.mktemp("models")
    models = fake_models({"a": FakeEngine()}, folder)
    models.put("a", served(FakeEngine(), directory=str(models.directories()["a"])))
    app = create_app(models, ratings=folder / "ratings.jsonl")
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *[("GET", path, POSITIVE) for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/{name}")],
        *[("POST", path, mode) for path in (*REPLIES, *OF_THE_PAGE) for mode in (POSITIVE, NEGATIVE)],
    ],
)
def test_server_conforms_to_its_description(
    described: schemathesis.BaseSchema, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    """Requests are valid or invalid according to the description."""
    operation = described[path][method]
    checks = [*CHECKS, negative_data_rejection if mode.is_negative else positive_data_acceptance]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=10 if path in REPLIES else 3, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    def requests(case: schemathesis.Case) -> None:
        response = case.call()
        # Limits of several fields together, which a JSON schema cannot state, sizes, and names of models.
        messages = "alternatives per token exceed the limit", '"unsupported_value"', '"body_too_large"'
        limited = any(message in response.text for message in messages)
        named = path in OF_THE_PAGE
        case.validate_response(response, checks=CHECKS if limited or named else checks)

    requests()


def test_description_has_no_422(described: schemathesis.BaseSchema) -> None:
    """The server never answers with FastAPI's 422."""
    text = json.dumps(described.raw_schema)
    assert "422" not in text
    assert "HTTPValidationError" not in text
