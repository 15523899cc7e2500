"""Settings: one declaration gives the flag, its check and its key in config.json."""

import dataclasses
import importlib
import json
import os
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatbot import config
from chatbot.attempts.files import trained_directory
from chatbot.attempts.settings import (
    FIXED,
    changed_settings,
    changed_values,
    settings_over_config,
    stored_settings,
    stored_values,
    train_settings,
)
from chatbot.config.model import ModelSettings
from chatbot.config.parallel import ParallelSettings
from chatbot.config.run import chosen_settings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, flags_of, flatten
from tests.commands import ROOT


def begin(attempt: str, **settings: Any) -> Path:
    """Write the config.json of an attempt."""
    config = Path("checkpoints", attempt, "config.json")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(stored_values(compose(Settings, attempt=attempt, **settings))))
    config.with_name("vocabulary.txt").touch()
    return config


# Each of them replaces the others of its row.
RIVALS = [{"steps", "epochs"}, {"batch_size", "batch_tokens"}, {"data", "source_file", "target_file"}]
COUNTS = st.integers(1, 9)
LENGTH = st.dictionaries(st.sampled_from(["steps", "epochs"]), COUNTS, max_size=1)
BATCH = st.dictionaries(st.sampled_from(["batch_size", "batch_tokens"]), COUNTS, max_size=1)
OF_FILES: list[dict[str, Any]] = [{}, {"data": ("a",)}, {"data": ("b", "c")}, {"source_file": "q", "target_file": "a"}]
OTHERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={"seed": COUNTS, "log_every": COUNTS, "rnn_size": st.sampled_from([8, 256]), "me": st.sampled_from("甲乙")}
    | {"copy": st.booleans(), "bidirectional": st.booleans(), "keep_prob": st.sampled_from([0.25, 0.5])},
)
LEVELS = st.builds(
    lambda *parts: {**parts[0], **parts[1], **parts[2], **parts[3]}, LENGTH, BATCH, st.sampled_from(OF_FILES), OTHERS
)


def overridden(levels: list[dict[str, Any]]) -> dict[str, Any]:
    """The values of levels, each of which overrides those before it."""
    values: dict[str, Any] = {}
    for level in levels:
        for name in level:
            for rivals in RIVALS:
                if name in rivals:
                    values = {other: value for other, value in values.items() if other not in rivals - level.keys()}
        values = {**values, **level}
    return values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(LEVELS, LEVELS, LEVELS, st.booleans())
def test_flags_override_file_and_file_overrides_what_an_attempt_began_with(
    work_dir: Path, began: dict[str, Any], in_file: dict[str, Any], flags: dict[str, Any], resumes: bool
) -> None:
    """And that the defaults. A flag replaces its rivals, too, and one with the default value counts."""
    Path("own.json").write_text(json.dumps({"attempt": "talk", **in_file}))
    shutil.rmtree("checkpoints", ignore_errors=True)
    given = overridden([in_file, flags])
    if resumes:
        began = stored_values(stored_settings(begin("talk", **began)))
        chosen_anew = {"precision", "both_directions"}
        values = overridden([{name: value for name, value in began.items() if name not in chosen_anew}, given])
    else:
        values = {**given, "not_given": chosen_settings() - given.keys()}
    expected = compose(Settings, **{"attempt": "talk", **values, "config": "own.json"})
    words = [word for name, value in flags.items() for word in flags_of(Settings)[name].words(value)]
    assert train_settings(["--config", "own.json", *words]) == expected
    assert settings_over_config({"config": "own.json", **flags}) == expected  # of the Python API


def test_what_an_attempt_began_with_can_be_undone(work_dir: Path) -> None:
    """Each setting whose default is none, and those that are switched on."""
    given = {"deterministic": True, "save_minutes": 2.0, "max_reply_frequency": 3, "probe": "q.txt", "map": "data"}
    given |= {"validate_every": 9, "me": "甲", "warm_up": 5, "epochs": 2}
    begin("talk", **given)
    assert flatten(train_settings(["--attempt", "talk"])).items() >= given.items()
    undone = [word for name in given if name != "deterministic" for word in (f"--{name.replace('_', '-')}", "none")]
    settings = flatten(train_settings(["--attempt", "talk", *undone, "--no-deterministic"]))
    assert {name: settings[name] for name in given} == {**dict.fromkeys(given), "deterministic": False}


def test_another_attempt_is_tuned_with_its_model_and_tokens(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights have the word vectors, and its folder the dictionary."""
    folder = begin("base", word_vectors="v.txt", rnn_size=64, dictionary="gone.txt", clean=("nfkc",), seed=7).parent
    (folder / "last").touch()
    (folder / "dictionary.txt").touch()
    tuned = train_settings(["--init-from", "base", "--attempt", "tuned", "--num-layers", "2"])
    own = f"{folder.absolute()}/dictionary.txt"
    expected = {"rnn_size": 64, "dictionary": own, "clean": ("nfkc",), "num_layers": 2}
    not_given = chosen_settings() - flags_of(ModelSettings).keys()
    assert tuned == compose(Settings, attempt="tuned", init_from="base", not_given=not_given, **expected)
    shown = f"--clean nfkc --dictionary {own} --rnn-size 64"
    assert capsys.readouterr().out == f"Settings of {folder.absolute()}/config.json: {shown}\n"
    assert train_settings(["--attempt", "base"]).corpus.dictionary == str(folder / "dictionary.txt")
    Path("gone.txt").touch()
    assert train_settings(["--attempt", "base"]).corpus.dictionary == "gone.txt"


def test_attempt_goes_on_with_its_own_settings(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = {"data": ("a b.tsv",), "rnn_size": 64, "steps": 9, "bidirectional": False, "precision": "bfloat16"}
    config = begin("talk", **began)
    settings = train_settings(["--attempt", "talk"])
    assert settings == compose(Settings, attempt="talk", **{**began, "precision": "auto"})
    expected = "--data 'a b.tsv' --rnn-size 64 --no-bidirectional --steps 9"
    assert capsys.readouterr().out == f"Settings of {config}: {expected}\n"

    settings = train_settings(["--attempt", "talk", "--rnn-size", "32", "--epochs", "2"])
    assert capsys.readouterr().out == f"Settings of {config}: --data 'a b.tsv' --no-bidirectional\n"
    assert (settings.model.rnn_size, settings.learning.steps, settings.learning.epochs) == (32, None, 2)
    assert changed_settings(stored_settings(config), settings) == ["--rnn-size 64 -> 32"]

    assert train_settings(["--attempt", "new"]) == compose(Settings, attempt="new", not_given=chosen_settings())
    assert train_settings(["--attempt", "talk", "--selftest"]).model.rnn_size == Settings().model.rnn_size
    Path("own.yaml").write_text("attempt: talk\nquiet: true\n")
    assert train_settings(["--config", "own.yaml"]).run.quiet
    assert capsys.readouterr().out == ""


def test_removed_setting_of_an_earlier_version_is_left_out(work_dir: Path) -> None:
    """Both where the attempt is resumed by its name, and by its file."""
    config = begin("old", rnn_size=64)
    removed = {"histograms": "all", "input_feeding": False, "sampled_softmax": 9}
    config.write_text(json.dumps({**json.loads(config.read_text()), **removed, "embeddings": None}))
    for flags in (["--attempt", "old"], ["--config", str(config)]):
        settings = train_settings(flags)
        assert (settings.model.rnn_size, settings.run.embeddings) == (64, "auto")
    assert stored_settings(config).model.rnn_size == 64


def test_flags_without_effect_are_refused_with_any_value(work_dir: Path) -> None:
    """Be it the default. The file of --config, which may name all settings, may have defaults."""
    begin("recurrent", rnn_size=64)
    begin("attentive", architecture="transformer", embedding_size=64)
    begin("unchecked", validation="none")
    transformer = "not used by --architecture transformer; leave it out"
    refused = {
        "--architecture transformer --cell lstm": f"--cell lstm: {transformer}",
        "--architecture transformer --bidirectional": f"--bidirectional: {transformer}",
        "--architecture transformer --no-bidirectional": f"--no-bidirectional: {transformer}",
        "--heads 4": "--heads 4: not used by --architecture recurrent; leave it out",
        "--attempt attentive --rnn-size 256": f"--rnn-size 256: {transformer}",
        "--init-from attentive --attention luong": f"--attention luong: {transformer}",
        "--attempt recurrent --heads 4": "--heads 4: not used by --architecture recurrent; leave it out",
        "--validation none --patience 3": "--patience: not used with --validation none; leave it out",
        "--attempt unchecked --validate-every 9": "--validate-every: not used with --validation none; leave it out",
    }
    for flags, message in refused.items():
        with pytest.raises(UserError, match=f"^{message}$"):
            train_settings(flags.split())
    assert train_settings(["--config", "checkpoints/attentive/config.json"]).model.heads == 4

    settings = train_settings(["--attempt", "recurrent", "--architecture", "transformer"])  # without the sizes before
    assert (settings.model.architecture, settings.model.rnn_size) == ("transformer", 256)
    assert changed_settings(stored_settings(Path("checkpoints/recurrent/config.json")), settings) == [
        "--architecture recurrent -> transformer"
    ]


def test_folder_of_an_attempt_is_its_name(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin("talk2", rnn_size=64)
    Path("checkpoints/talk2").rename("checkpoints/talk3")
    for flags in (["--config", "checkpoints/talk3/config.json"], ["--attempt", "talk3"]):
        settings = train_settings(flags)
        assert (settings.run.attempt, settings.model.rnn_size) == ("talk3", 64)
    settings = train_settings(["--config", "checkpoints/talk3/config.json", "--attempt", "new"])
    assert (settings.run.attempt, settings.model.rnn_size) == ("new", 64)
    Path("checkpoints/default").symlink_to("talk3")
    assert train_settings([]).run.attempt == "default"

    elsewhere = work_dir / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(UserError, match=rf"talk3 is an attempt, but not in {elsewhere}/checkpoints; run the command"):
        train_settings(["--config", "../checkpoints/talk3/config.json"])
    settings = train_settings(["--config", "../checkpoints/talk3/config.json", "--attempt", "new"])
    assert (settings.run.attempt, settings.model.rnn_size) == ("new", 64)


@pytest.mark.parametrize("inside", ["checkpoints", "elsewhere"])
def test_trained_attempt_is_found_by_name_and_path(work_dir: Path, inside: str) -> None:
    directory = begin("talk").parent.absolute()
    if inside == "elsewhere":
        directory = directory.rename(work_dir / "talk")
    names = [str(directory), f"{os.path.relpath(directory)}/", "talk"]
    assert [trained_directory(name) for name in names] == [directory] * 3
    known = "there are talk" if inside == "checkpoints" else "there are none; train one with python train.py"
    with pytest.raises(UserError, match=f"no such attempt in {work_dir}/checkpoints; {known}, or give the path"):
        trained_directory("other")
    with pytest.raises(UserError, match=f"not an attempt, {work_dir}/other/talk has no config.json; check the path"):
        trained_directory("other/talk")


def test_folder_that_is_no_attempt_is_named_as_what_it_is(work_dir: Path) -> None:
    """An export has a config.json, too."""
    (begin("onnx").parent / "export.json").touch()
    for name in ("onnx", "checkpoints/onnx"):
        talk = "chat with it using python chat.py --export checkpoints/onnx"
        with pytest.raises(UserError, match=f"--attempt {name}: an export, not an attempt; {talk}"):
            trained_directory(name)


def test_only_fixed_settings_count_as_changed() -> None:
    """The order of several values has no meaning, and a new "auto" keeps the earlier choice."""
    before = compose(Settings, rnn_size=64, log_every=5, both_directions="on", clean=("urls", "nfkc"))
    after = compose(Settings, rnn_size=128, log_every=9, both_directions="auto", clean=("nfkc", "urls"))
    assert changed_settings(before, after) == ["--rnn-size 64 -> 128"]
    assert changed_values({"rnn_size": 64, "log_every": 5, "histograms": "all", "quiet": True}, after) == (
        ["--rnn-size 64 -> 128"],
        ["--log-every 5 -> 9"],
    )


# The bounds and marks that settings must have.
DECLARED = yaml.safe_load((ROOT / "tests/data/declared.yaml").read_text(encoding="utf-8"))


def test_settings_are_fixed_and_stored_as_intended() -> None:
    of_model, of_devices = flags_of(ModelSettings).keys(), flags_of(ParallelSettings).keys()
    assert {*FIXED} == {*DECLARED["fixed"].split(), *of_model} - {*DECLARED["changeable_of_model"].split()}
    not_stored = {name for name, flag in flags_of(Settings).items() if not flag.stored}
    assert not_stored == {*DECLARED["not_stored"].split(), *of_devices} - {"staged_variables"}
    assert sum(len(flags_of(field.type)) for field in dataclasses.fields(Settings)) == len(flags_of(Settings))
    with pytest.raises(UserError, match="--init-from and --word-vectors are mutually exclusive; use only one"):
        compose(Settings, init_from="a", word_vectors="b")


def test_numbers_have_the_usual_bounds() -> None:
    bounds = (DECLARED["minimum"], DECLARED["maximum"])
    minimum, maximum = ({name: n for n, names in bound.items() for name in names.split()} for bound in bounds)
    above = DECLARED["above_0"].split()
    modules = [
        importlib.import_module(f"chatbot.config.{name}") for _, name, _ in pkgutil.iter_modules(config.__path__)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
    names = set()
    for name, flag in [named for kind in kinds for named in flags_of(kind).items()]:
        if flag.kind in (int, float):
            usual = 0 if flag.default == 0 or flag.kind is float else 1
            assert (flag.minimum, flag.above) == ((None, 0) if name in above else (minimum.get(name, usual), None)), (
                name
            )
            assert flag.maximum == (None if (name, flag.default) == ("history", None) else maximum.get(name)), name
            names.add(name)
    assert names >= {*minimum, *above, *maximum}
