"""A checkpoint names the pairs, the vocabulary, the settings and the versions that it was trained with."""

import json
import shutil
from pathlib import Path

import pytest

from chatbot.attempts.trained import load_trained
from chatbot.errors import UserError
from chatbot.training.checkpoints import progress as module
from tests.training.checkpoints.step_checkpoints import edit_manifest
from tests.training.small_run import train_with_flags
from tests.training.untraced_update import train_untraced

ATTEMPT = Path("checkpoints/default")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the attempt default of one step, written with TensorFlow 2.20 and chatbot 0.0.1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory := tmp_path_factory.mktemp("trained"))
        versions = {**module.versions(), "tensorflow": "2.20.0", "chatbot": "0.0.1"}
        patch.setattr(module, "versions", lambda: versions)
        Path("pairs.tsv").write_text("你好\t你好呀\n你好\t你\n你好\t你好呀\n")
        train_untraced(steps=1)
        return directory


@pytest.fixture(autouse=True)
def _copied(work_dir: Path, trained: Path) -> None:
    shutil.copytree(trained / "checkpoints", "checkpoints")
    shutil.copy(trained / "pairs.tsv", "pairs.tsv")


def test_manifest_names_data_settings_and_versions() -> None:
    manifest = json.loads((ATTEMPT / "ckpt-1.json").read_text())
    assert manifest["data"] == json.loads((ATTEMPT / "data.json").read_text())
    assert manifest["settings"] == json.loads((ATTEMPT / "config.json").read_text())
    assert manifest["versions"].keys() == {"chatbot", "tensorflow", "keras", "numpy", "python"}


def test_changes_that_are_allowed_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    train_untraced(steps=2, learning_rate=0.005)
    out = capsys.readouterr().out
    assert "\nChanged since step 1: --learning-rate 0.002 -> 0.005; --steps 1 -> 2.\n" in out
    now = module.versions()
    assert f"with chatbot 0.0.1 (now {now['chatbot']}), tensorflow 2.20.0 (now {now['tensorflow']}): results may" in out
    versions = json.loads((ATTEMPT / "ckpt-2.json").read_text())["versions"]
    assert versions == now


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("fingerprint", r"ckpt-1.json: the checkpoint was trained on other pairs; restore the right ch"),
        ("vocabulary", r"vocabulary.txt: not the vocabulary that ckpt-1 was trained with"),
    ],
)
def test_checkpoint_of_another_attempt_is_refused(part: str, error: str) -> None:
    """It has the shapes of this one."""
    edit_manifest(ATTEMPT / "ckpt-1.json", lambda manifest: manifest["data"].update({part: "another"}))
    before = {path: path.read_bytes() for path in ATTEMPT.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=error):
        train_untraced(steps=2)
    assert {path: path.read_bytes() for path in ATTEMPT.rglob("*") if path.is_file()} == before
    if part == "vocabulary":
        with pytest.raises(UserError, match=error):
            load_trained(ATTEMPT)


@pytest.mark.parametrize("part", ["data", "settings", "versions"])
def test_malformed_manifest_is_damage(part: str) -> None:
    edit_manifest(ATTEMPT / "ckpt-1.json", lambda manifest: manifest.update({part: []}))
    with pytest.raises(UserError, match=r"ckpt-1: checkpoint damaged \(ckpt-1.json is malformed\); restore it from a"):
        train_untraced(steps=2)


def test_fixed_setting_that_was_edited_is_refused() -> None:
    config = ATTEMPT / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "seed": 7}))
    with pytest.raises(
        UserError,
        match=r"ckpt-1.json: the checkpoint was trained with other settings: --seed 1 -> 7; restore the right",
    ):
        train_untraced(steps=2, seed=7)


def test_attempt_goes_on_by_its_name_after_it_was_renamed(capsys: pytest.CaptureFixture[str]) -> None:
    ATTEMPT.rename("checkpoints/talk")
    assert train_with_flags("--attempt", "talk", "--steps", "2") == 0
    out = capsys.readouterr().out
    assert "Settings of checkpoints/talk/config.json: --data pairs.tsv " in out
    assert "Resuming from step 1 of checkpoints/talk." in out
    assert [path.name for path in Path("checkpoints").iterdir()] == ["talk"]
    message = "--rnn-size 16 -> 8. `.*train.* --attempt talk` resumes it with its own"
    with pytest.raises(UserError, match=message):
        train_with_flags("--attempt", "talk", "--rnn-size", "8")
