"""The checkpoints that are kept, and those that take the place of a damaged one."""

from pathlib import Path

import pytest

from chatbot.model.saved import load_trained
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from tests.training.attempts import metrics
from tests.training.checkpoints.step_checkpoints import DIRECTORY, flip_a_bit, model_of, save, steps_on_disk, values_of
from tests.training.small_run import train_small


@pytest.fixture
def directory(work_dir: Path) -> Path:
    """The empty folder of an attempt."""
    DIRECTORY.mkdir(parents=True)
    return DIRECTORY


def files_of(step: int) -> list[Path]:
    """The tensors and the manifest of a checkpoint."""
    return [DIRECTORY / f"ckpt-{step}{ending}" for ending in (".safetensors", ".json")]


def test_damaged_best_does_not_end_a_run_that_is_finished(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    save(2, best=False)
    model = model_of(2)
    for damage, what in (
        (lambda: flip_a_bit(files_of(1)[0]), "ckpt-1: checkpoint damaged"),
        (lambda: (directory / "best").write_text("{"), "best: damaged"),
    ):
        damage()
        Checkpoints(DIRECTORY, model).load_best(Progress(step=2, best_step=1))
        out = capsys.readouterr().err
        assert what in out
        assert out.endswith("; the weights of step 2 are used instead.\n")
    assert values_of(model.trainable_variables) == {2.0}


def test_run_keeps_resumes_and_replies_from_whole_checkpoints(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--keep and --save-minutes; with a damaged checkpoint the run repeats its steps, and chat uses another one."""
    clock = iter(range(0, 20_000, 60))  # seconds at each look at the clock
    monkeypatch.setattr("chatbot.training.checkpoints.store.time.monotonic", lambda: float(next(clock)))
    run = {"data": (str(pairs_file),), "attempt": "default", "log_every": 2}
    assert train_small(1, **run, steps=9, keep=3, save_minutes=1.5) == 0
    whole = metrics()
    steps = steps_on_disk()
    assert len(steps) == 3
    assert all(step % 2 == 0 or step in (1, 9) for step in steps)  # a logged step follows the clock
    flip_a_bit(files_of(9)[0])
    capsys.readouterr()
    used = max(steps - {9})
    assert load_trained(DIRECTORY).step == used
    assert capsys.readouterr().err.endswith(f"; the checkpoint of step {used} is used instead.\n")
    assert train_small(1, **run, steps=9) == 0
    assert f"Resuming from step {used} of" in capsys.readouterr().out
    assert [(x["step"], x["loss"]) for x in metrics()] == [(x["step"], x["loss"]) for x in whole]
