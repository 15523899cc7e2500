"""The routes of the page do what the OpenAPI description says, for requests that schemathesis makes from it."""

from pathlib import Path

import hypothesis
import pytest
import schemathesis

from chatbot.chat.server.app import create_app
from tests.chat.page.fake_models import fake_server

GENERATED = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> schemathesis.BaseSchema:
    folder = tmp_path_factory.mktemp("described")
    app = create_app(fake_server(folder).models, ratings=folder / "ratings.jsonl")
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.slow
@pytest.mark.parametrize("mode", GENERATED, ids=["as described", "otherwise"])
@pytest.mark.parametrize("path", ["attention", "ratings", "comparisons"])
def test_requests_of_the_description(
    described: schemathesis.BaseSchema, path: str, mode: schemathesis.GenerationMode
) -> None:
    @hypothesis.given(case=described[f"/chat/{path}"]["POST"].as_strategy(generation_mode=mode))
    @hypothesis.settings(max_examples=5, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    def requests(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=[schemathesis.checks.not_a_server_error])

    requests()


def test_paths_of_models_are_no_paths(described: schemathesis.BaseSchema, tmp_path: Path) -> None:
    response = described["/chat/attention"]["POST"].Case(
        body={"model": str(tmp_path), "question": "a", "reply": "b"}, media_type="application/json"
    )
    assert response.call().status_code == 404
