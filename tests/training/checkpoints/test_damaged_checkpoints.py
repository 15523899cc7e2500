"""The checkpoints that are kept, and those that take the place of a damaged one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.errors import UserError
from chatbot.model.checkpoint import read_pointer
from chatbot.model.saved import load_trained
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from tests.training.attempts import metrics
from tests.training.checkpoints.step_checkpoints import (
    DIRECTORY,
    flip_a_bit,
    model_of,
    restored,
    save,
    steps_on_disk,
    values_of,
)
from tests.training.small_run import small_settings, train_small


@pytest.fixture
def directory(work_dir: Path) -> Path:
    """The empty folder of an attempt."""
    DIRECTORY.mkdir(parents=True)
    return DIRECTORY


def files_of(step: int) -> list[Path]:
    """The tensors and the manifest of a checkpoint."""
    return [DIRECTORY / f"ckpt-{step}{ending}" for ending in (".safetensors", ".json")]


def test_newest_checkpoints_stay_beside_the_best(directory: Path) -> None:
    kept = []
    for step in range(1, 6):
        save(step, best=step == 2, keep=2)
        kept.append(steps_on_disk())
    assert kept == [{1}, {1, 2}, {2, 3}, {2, 3, 4}, {2, 4, 5}]
    (directory / "ckpt-6.safetensors").touch()  # of a process that was killed
    save(7, best=False, keep=1)
    assert {path.name for path in directory.glob("ckpt-*")} == {path.name for step in (2, 7) for path in files_of(step)}


@pytest.mark.parametrize("file", range(2), ids=["tensors", "manifest"])
@pytest.mark.parametrize("damage", [flip_a_bit, lambda path: path.write_bytes(path.read_bytes()[:-20])])
def test_damaged_checkpoint_is_replaced_by_the_one_before(
    directory: Path, file: int, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(1, 5):
        save(step, best=False, keep=3)
    for step in (4, 3):
        damage(files_of(step)[file])
    assert restored().step == 2
    out = capsys.readouterr().err
    assert out.startswith(f"Warning: {DIRECTORY}/ckpt-4: checkpoint damaged (ckpt-4.")
    assert out.endswith("; the checkpoint of step 2 is used instead.\n")
    assert read_pointer(directory / "last")["step"] == 2
    save(4, best=False, keep=3)
    assert (restored().step, steps_on_disk()) == (4, {2, 3, 4})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("best", "keep", "step", "best_after"), [((4,), 2, 3, None), ((3, 4), 2, 3, 3), ((2,), 2, 3, 2), ((2,), 1, 2, 2)]
)
def test_best_never_names_a_checkpoint_that_is_found_damaged(
    directory: Path, best: tuple[int, ...], keep: int, step: int, best_after: int | None
) -> None:
    for saved in (2, 3, 4):
        save(saved, best=saved in best, keep=keep)
    flip_a_bit(files_of(4)[0])
    progress = restored()
    assert progress.step == step
    assert (read_pointer(directory / "best")["step"] if (directory / "best").exists() else None) == best_after
    if best_after is None:  # the next validation is the best
        assert (progress.best_step, progress.best_nats) == (0, None)


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


def test_no_whole_checkpoint_is_an_error_that_changes_nothing(directory: Path) -> None:
    for step in (1, 2):
        save(step, best=False, keep=2)
        flip_a_bit(files_of(step)[0])
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(UserError, match=r"ckpt-2: checkpoint damaged \(ckpt-2.safetensors .*; restore it from"):
        restored()
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_checkpoint_without_a_manifest_is_not_whole(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        save(step, best=False, keep=2)
    (directory / "ckpt-2.json").unlink()
    assert restored().step == 1
    assert f"{directory}/ckpt-2: checkpoint missing (no file ckpt-2.json)" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"keep": 0}, "--keep 0: must be at least 1"),
        ({"save_minutes": 0}, "--save-minutes 0: must be above 0"),
        ({"save_minutes": -1.5}, "--save-minutes -1.5: must be above 0"),
        ({"save_minutes": float("nan")}, "--save-minutes nan: expected a finite number"),
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, float], message: str) -> None:
    with pytest.raises(UserError) as error:
        small_settings(**setting)
    assert str(error.value) == message
