"""The training pairs that an attempt keeps, to be looked up in the chat."""

import json
from pathlib import Path
from typing import Any

import pytest

import chatbot
from chatbot.chat.loading import load_model
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.training.data import prepare
from chatbot.training.loop import train
from chatbot.training.reporting.terminal import question_line
from tests.chat.terminal.typed import Line, typed
from tests.training.small_run import open_with, small_settings
from tests.training.untraced_update import UntracedUpdate


def trained_with_pairs(held_out: Path, **changes: Any) -> list[list[str]]:
    """Train a step with an index of the pairs, and return these. One like the first of them is held out."""
    pairs = [line.split("\t")[:2] for line in Path("pairs.tsv").read_text().splitlines()]
    held_out.write_text(f"{pairs[0][0]}呀\t{pairs[1][1]}\n")
    settings = small_settings(data=("pairs.tsv",), validation=str(held_out), **changes, validate_every=1, steps=1)
    train(open_with(UntracedUpdate, settings, prepare(settings)))
    return pairs


@pytest.mark.parametrize("both_directions", ["on", "off"])
def test_run_with_validation_keeps_its_pairs_for_the_chat(
    held_out: Path, both_directions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last lines of the run show replies as the chat gives them."""
    pairs = trained_with_pairs(held_out, both_directions=both_directions)
    directory = Path("checkpoints/default")
    kept = json.loads((directory / "retrieval" / "index.json").read_text())
    assert kept["corpus"] == json.loads((directory / "data.json").read_text())["fingerprint"]
    responder = load_model(directory).responder_of(DecodingSettings())
    reply = responder.reply(f"{pairs[0][0]}呀")
    question = responder.origin(f"{pairs[0][0]}呀", reply).question
    assert [question, reply] in pairs
    assert question_line(f"{pairs[0][0]}呀", reply) in capsys.readouterr().out


def test_ratings_change_the_next_reply(held_out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the terminal, where /why names the pair that a rating has taken away; the Python API reads no ratings."""
    pairs = trained_with_pairs(held_out)
    directory, question = Path("checkpoints/default"), f"{pairs[0][0]}呀"
    model = load_model(directory)

    def shown(*lines: Line) -> list[str]:
        capsys.readouterr()
        typed(model, lines)
        return capsys.readouterr().out.splitlines()

    first, why, *_ = shown(question, "/bad", "/why")
    assert [why.removeprefix("A person wrote this reply, to: "), first] in pairs
    assert first not in shown(question)
    generated = shown("xyz", "/good")
    good, why, *_ = shown("xyz?", "/why")
    assert ([good], why) == (generated, "This reply was rated good as a reply to: xyz")
    assert chatbot.load(directory).reply(question) == first


def test_retrieve_pairs_0_keeps_none(held_out: Path) -> None:
    trained_with_pairs(held_out, retrieve_pairs=0)
    assert not Path("checkpoints/default/retrieval").exists()
    model = load_model(Path("checkpoints/default"))
    assert model.responder_of(DecodingSettings()).decoding.retrieved == 0
    with pytest.raises(UserError, match=r"^--retrieve 5: this attempt has no index"):
        model.responder_of(DecodingSettings(retrieve="5"))
