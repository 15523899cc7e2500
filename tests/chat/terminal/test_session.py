"""Newer checkpoints with --follow, and searches that are not traced again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from chatbot.chat import loading
from chatbot.chat.loading import CurrentModel, load_model
from chatbot.chat.terminal.session import Screen, Session
from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import Origin
from chatbot.errors import UserError
from tests.chat.terminal.fake_model import FakeReplier, fake_model, renamed
from tests.chat.terminal.typed import piped, typed
from tests.export.untrained import write_attempt


def point(name: str, step: int) -> None:
    """Set a pointer of the attempt to a checkpoint."""
    folder = Path("fake")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"checkpoint": f"ckpt-{step}", "step": step}))


@pytest.fixture
def loaded(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the steps that are loaded next. Step 0 cannot be loaded."""
    steps: list[int] = []

    def load_model(folder: Path, decoding: DecodingSettings) -> object:
        if not (step := steps.pop(0)):
            raise UserError("ckpt-0: damaged")
        return dataclasses.replace(renamed(fake_model(), step), version=loading.checkpoint_version(folder))

    monkeypatch.setattr(loading, "load_model", load_model)
    point("last", 1200)
    return steps


def test_newer_checkpoint_answers(loaded: list[int]) -> None:
    current, said = CurrentModel(fake_model(), DecodingSettings(), follow=True), list[str]()
    current.update(said.append)
    assert said == []
    point("last", 1300)
    loaded.append(1300)
    current.update(said.append)
    current.update(said.append)
    point("best", 1300)  # the best one answers, once there is validation
    point("last", 1400)
    current.update(said.append)
    assert said == ["Now using the checkpoint of step 1,300 instead of step 1,200."]
    assert current.model.card.step == 1300


def test_damaged_checkpoint_keeps_the_old_one(loaded: list[int]) -> None:
    current, said = CurrentModel(fake_model(), DecodingSettings(), follow=True), list[str]()
    point("last", 1300)
    loaded += [0, 1200]
    for _ in range(2):  # it is not tried again
        current.update(said.append)
    assert said == ["Warning: ckpt-0: damaged"]
    point("last", 1400)
    current.update(said.append)  # another one was found in its place: that of step 1,200
    assert len(said) == 1
    Path("fake/last").write_text("{")
    current.update(said.append)
    assert "damaged, it does not name a checkpoint" in said[1]
    assert current.model.card.step == 1200
    assert loaded == []


@pytest.mark.parametrize("in_terminal", [True, False])
def test_new_checkpoints_are_announced_on_standard_error(
    loaded: list[int], capsys: pytest.CaptureFixture[str], in_terminal: bool
) -> None:
    for step, line in ((1300, "Now using the checkpoint of step 1,300"), (0, "ckpt-0: damaged")):
        point("last", 1300 + step)
        loaded.append(step)
        if in_terminal:
            typed(fake_model(), ["a", "b"], "--follow")
        else:
            piped(fake_model(), "a\nb\n", "--follow")
        out, err = capsys.readouterr()
        assert out == "a/1\nb/1\n"
        assert err.count(line) == 1


def test_another_seed_or_number_of_replies_is_not_traced_again(tmp_path: Path) -> None:
    model = load_model(write_attempt(tmp_path / "talk"))
    current = CurrentModel(model, DecodingSettings(candidates=2, temperature=3.0))
    replies = {reply.text for seed in range(4) for reply in current.pieces("你好", (), "", n_best=2, seed=seed)}
    assert len(replies) > 2
    search: Any = model.responder.replier_for(current.effective_decoding).search
    assert search.graph.traces == 1
    current.close()


@pytest.mark.parametrize("n_best", [1, 2])
def test_reply_keeps_the_origin_that_it_had(monkeypatch: pytest.MonkeyPatch, n_best: int) -> None:
    """Ratings may change that of the same reply later."""
    monkeypatch.setattr(FakeReplier, "looked_up", Origin("你是谁"))
    chat = Session(CurrentModel(fake_model(), DecodingSettings(beam_size=2, n_best=n_best)), 0, Screen())
    chat.answer("你好")
    monkeypatch.setattr(FakeReplier, "looked_up", Origin())
    assert chat.find_origin(chat.last_exchange("no reply")) == Origin("你是谁")
    chat.current.close()


def test_without_the_flag_nothing_is_followed(loaded: list[int]) -> None:
    current = CurrentModel(fake_model(), DecodingSettings())
    point("last", 1300)
    current.update(pytest.fail)
