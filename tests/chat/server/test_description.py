"""The server does what its own OpenAPI description says, for requests that schemathesis makes from it."""

import json
from collections.abc import Iterator

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
from tests.chat.server.running import running

CHECKS = [schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance]


POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
OPERATIONS = [
    ("GET", "/health", POSITIVE),
    ("GET", "/ready", POSITIVE),
    ("GET", "/metrics", POSITIVE),
    ("GET", "/v1/models", POSITIVE),
    ("GET", "/v1/models/{name}", POSITIVE),
    *[
        ("POST", path, mode)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses")
        for mode in (POSITIVE, NEGATIVE)
    ],
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    models = fake_models({"a": FakeEngine()}, tmp_path_factory.mktemp("models"))
    models.put("a", models.directories()["a"], served(FakeEngine()))
    with running(create_app(models)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_requests_of_the_description(
    described: schemathesis.BaseSchema, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    """Of requests that fit the description, and of those that do not."""
    operation = described[path][method]
    checks = [*CHECKS, negative_data_rejection if mode.is_negative else positive_data_acceptance]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=15 if method == "POST" else 3, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    def requests(case: schemathesis.Case) -> None:
        response = case.call()
        # Limits of several fields together, which a JSON schema cannot state.
        limited = "others are allowed for each token" in response.text or '"unsupported_value"' in response.text
        case.validate_response(response, checks=CHECKS if limited else checks)

    requests()


def test_description_is_whole(described: schemathesis.BaseSchema) -> None:
    """No 422, which the server does not use."""
    text = json.dumps(described.raw_schema)
    assert "422" not in text
    assert "HTTPValidationError" not in text
