"""Combines settings from flags, a --config file and an attempt's config.json. Flags take precedence."""

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.files import CONFIG, DICTIONARY, RETRIEVAL, VOCABULARY, trained_directory
from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS, attempt_directory
from chatbot.config.corpus import AUTO, NONE, CorpusSettings, EncodingSettings
from chatbot.config.decoding import DecodingSettings, default_search, over_default
from chatbot.config.form import Form
from chatbot.config.model import RECURRENT_SETTINGS, TRANSFORMER_SETTINGS, ModelSettings, check_architecture
from chatbot.config.run import RunSettings, chosen_settings
from chatbot.config.training import TRAIN, Settings
from chatbot.durable import read_json
from chatbot.errors import UserError
from chatbot.flags import REMOVED, compose, flag_of, flags_for, flags_of, flatten

# Settings whose default is "auto". config.json contains the values that were chosen for them.
CHOSEN = ("both_directions", "precision")
# Groups of mutually exclusive settings. A flag for one of them overrides a file's values for the whole group.
ALTERNATIVES = ({"steps", "epochs"}, {"data", "source_file", "target_file"}, {"batch_size", "batch_tokens"})
# Settings that come with a pretrained model, but that flags can override.
PRETRAINED_FREE = {"keep_prob", "learning_rate", "both_directions"}
# Settings of the tokenizer, which must not change when training starts from a pretrained model.
PRETRAINED_TOKENS = {"tokenizer", "dictionary", "vocabulary_size"}
# Settings that have no effect without validation.
VALIDATION_SETTINGS = ("patience", "validate_every")


def train_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Parse the command-line arguments of train.py; see `settings_over_config`. Raises UserError."""
    return settings_over_config(TRAIN.values(arguments))


def settings_over_config(flags: dict[str, Any]) -> Settings:
    """Return the settings of a training run.

    Flags take precedence over the --config file, which takes precedence over the settings of an existing attempt. All
    other settings have their defaults. Settings of the attempt are printed unless `quiet` is set.

    Args:
        flags: The values of the given flags, by the names of settings.

    Raises:
        UserError: If a file or a value is invalid, or if a flag has no effect in combination with the other settings.
    """
    config: dict[str, Any] = {}
    if flags.get("config"):
        from chatbot.config.template import read_settings_file

        config = read_settings_file(Path(flags["config"]))
    if flags.get("batch_size") and flags.get("batch_tokens"):
        raise UserError("--batch-size and --batch-tokens: both set the size of a batch; give only one")
    with contextlib.redirect_stdout(io.StringIO() if _override(config, flags).get("quiet") else sys.stdout):
        settings = _settings_over_config(flags, config)
    check_architecture(settings.model.architecture, flags)
    unused = [name for name in VALIDATION_SETTINGS if name in flags and settings.encoding.validation == NONE]
    if unused:
        raise UserError(f"{flag_of(unused[0])}: not used with --validation {NONE}; leave it out")
    return settings


def _settings_over_config(flags: dict[str, Any], config: dict[str, Any]) -> Settings:
    if config and (folder := _attempt_folder(Path(flags["config"]), "attempt" in flags)):
        config = {**config, "attempt": folder}
    given = _override(config, flags)
    attempt = given.get("attempt", RunSettings.attempt)
    flags_of(RunSettings)["attempt"].check(attempt)
    config_file = attempt_directory(attempt) / CONFIG
    if given.get("selftest"):
        return compose(Settings, **given)
    if not config_file.exists():
        inherited = _inherited_settings(given["init_from"], given) if given.get("init_from") else {}
        fixed = (
            flags_of(ModelSettings) if given.get("init_from") else {}
        )  # the initial weights determine these settings
        not_given = chosen_settings() - {*fixed, *inherited, *given}
        return compose(Settings, **_override(inherited, given), not_given=not_given)
    stored = {**read_settings(config_file.absolute()), "attempt": attempt}
    copied = config_file.with_name(DICTIONARY)
    if stored.get("dictionary") and not Path(stored["dictionary"]).exists() and copied.exists():
        stored["dictionary"] = str(copied)  # the original no longer exists
    # Settings that were chosen automatically are reset to "auto", which keeps the choice of the attempt. Otherwise, the
    # machines of a run would have different settings, because only one of them has a config.json.
    values = _override({name: value for name, value in stored.items() if name not in CHOSEN}, given)
    # Instead of the name of a preset, the settings that the preset chose are printed.
    printed = {name: value for name, value in values.items() if name not in {"preset", *given}}
    if inherited_flags := flags_for(Settings, printed):
        print(f"Settings of {config_file}: {inherited_flags}")
    return compose(Settings, **values)


def _attempt_folder(config: Path, attempt_given: bool) -> str | None:
    """Return the name of the attempt whose folder contains the --config file; None if the file is elsewhere.

    Raises UserError if the file belongs to an attempt in another checkpoints/ folder, unless --attempt is given.
    """
    folder = Path(os.path.abspath(config)).parent
    if CHECKPOINTS.is_dir() and folder.parent.is_dir() and folder.parent.samefile(CHECKPOINTS):
        return folder.name
    if not attempt_given and config.name == CONFIG and (folder / VOCABULARY).exists():
        raise UserError(
            f"--config {config}: {folder} is an attempt, but not in {CHECKPOINTS.absolute()}; run the command in the "
            f"folder that has it in {CHECKPOINTS}/, or start a new attempt here with --attempt"
        )
    return None


def _inherited_settings(attempt: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return and print the settings that a new attempt takes from the --init-from attempt or pretrained model.

    They are settings of the model, the tokenizer and the cleaning.

    Raises UserError if the attempt or pretrained model does not exist, or if a flag contradicts a pretrained model.
    """
    from chatbot.pretrained.folder import pretrained_model

    if (model := pretrained_model(attempt)) is not None:
        if Path(attempt).name == attempt and (CHECKPOINTS / attempt / CONFIG).exists():
            remedy = f"give ./{attempt}, or {CHECKPOINTS}/{attempt}"
            raise UserError(f"--init-from {attempt}: a pretrained model and an attempt have this name; {remedy}")
        folder = model.folder
        values = model.settings()
        fixed = {*values, "vocabulary_size"} - PRETRAINED_FREE
    else:
        folder = trained_directory(attempt, "--init-from")
        model_names = flags_of(ModelSettings).keys() - {"word_vectors"}  # the weights include them
        names = {*model_names, "form", "clean", "tokenizer", "dictionary", "vocabulary_size"}
        values = read_settings(folder / CONFIG)
        fixed = PRETRAINED_TOKENS if "form" in values else set()
        if fixed:
            names |= PRETRAINED_FREE
        values = {name: value for name, value in values.items() if name in names}
        if values.get("dictionary"):
            values["dictionary"] = str(folder / DICTIONARY)
    for name in fixed & {*given}:
        if given[name] != values.get(name):
            flag = " ".join(flags_of(Settings)[name].words(given[name]))
            raise UserError(f"{flag}: differs from the pretrained model in {folder}; leave it out")
    if inherited_flags := flags_for(Settings, {name: value for name, value in values.items() if name not in given}):
        print(f"Settings of {folder / CONFIG}: {inherited_flags}")
    return values


def _override(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return `values` overridden by `given`.

    Settings that conflict with a given setting are removed: the other settings of its group in ALTERNATIVES, and the
    settings of another architecture.
    """
    replaced = {name for group in ALTERNATIVES if group & given.keys() for name in group}
    architecture = values.get("architecture", ModelSettings.architecture)
    if given.get("architecture", architecture) != architecture:
        replaced |= {*RECURRENT_SETTINGS, *TRANSFORMER_SETTINGS}
    return {**{name: value for name, value in values.items() if name not in replaced}, **given}


def read_settings(path: Path) -> dict[str, Any]:
    """Read an attempt's config.json as a dictionary. Raises UserError if the file cannot be used."""
    remedy = "restore it from a backup, or use another file"
    try:
        values = read_json(path)
    except OSError as error:
        raise UserError(f"{path}: settings cannot be read ({error.strerror}); {remedy}") from None
    except ValueError:
        raise UserError(f"{path}: damaged, not JSON; {remedy}") from None
    known = flags_of(Settings)
    lists = {name for name, flag in known.items() if flag.many}
    if not isinstance(values, dict) or not all(isinstance(values.get(name, []), list) for name in lists):
        raise UserError(f"{path}: damaged, expected a JSON object of settings; {remedy}")
    if values.get("input_feeding"):  # the removed feature changed the shapes of weights
        raise UserError(f"{path}: trained with --input-feeding, which was removed; train another attempt without it")
    values = {name: value for name, value in values.items() if name not in REMOVED}
    if values.get("embeddings", AUTO) is None:  # the default of earlier versions
        del values["embeddings"]
    form = {"form": Form.from_values(values.pop("form"))} if "form" in values else {}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        settings = "setting" if len(unknown) == 1 else "settings"
        raise UserError(
            f"{path}: unknown {settings} {', '.join(map(repr, unknown))}, perhaps of another version; remove the "
            f"settings that {program('train')} --help does not list"
        )
    return {name: tuple(value) if name in lists else value for name, value in values.items()} | form


def stored_settings(path: Path) -> Settings:
    """Read an attempt's config.json as `Settings`. Raises UserError for a damaged file or an invalid value."""
    try:
        return compose(Settings, **read_settings(path))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def stored_values(settings: Settings) -> dict[str, Any]:
    """Return the settings to write to config.json."""
    values = flatten(settings)
    form = {} if settings.model.form is None else {"form": dataclasses.asdict(settings.model.form)}
    return {name: values[name] for name, flag in flags_of(Settings).items() if flag.stored} | form


FIXED = [name for name, flag in flags_of(Settings).items() if flag.fixed]
# Settings that affect which pairs are read from a file, and settings that affect the shapes of weights.
PAIR_SETTINGS = [name for name, flag in (flags_of(CorpusSettings) | flags_of(EncodingSettings)).items() if flag.stored]
WEIGHT_SETTINGS = [name for name in flags_of(ModelSettings) if name in FIXED and name != "max_length"]


def changed_settings(old: Settings, new: Settings, names: Sequence[str] = FIXED) -> list[str]:
    """Return the differences between two settings objects, each in the form "--flag old -> new".

    A new value of "auto" is never a difference. If the architectures differ, the settings of only one architecture are
    not compared.
    """
    before = flatten(old)
    after = flatten(new)
    if before["architecture"] != after["architecture"]:
        names = [name for name in names if name not in (*RECURRENT_SETTINGS, *TRANSFORMER_SETTINGS)]
    return [
        f"{flag_of(name)} {_on_command_line(before[name])} -> {_on_command_line(after[name])}"
        for name in names
        if after[name] != AUTO and _on_command_line(before[name]) != _on_command_line(after[name])
    ]


def changed_values(old: dict[str, Any], new: Settings) -> tuple[list[str], list[str]]:
    """Compare stored settings with the settings of a run, ignoring missing and unknown settings.

    Args:
        old: A previous result of `stored_values`.
        new: The settings of the run.

    Returns:
        The differences in settings that cannot change during training, and all other differences. Each has the form
        "--flag old -> new".

    Raises:
        UserError: If a stored value is not allowed.
        TypeError: If a stored value has the wrong type.
    """
    flags = {name: flag for name, flag in flags_of(Settings).items() if name in old and flag.stored}
    values = {name: tuple(old[name]) if flag.many else old[name] for name, flag in flags.items()}
    form = {"form": Form.from_values(old["form"])} if "form" in old else {}
    before = compose(Settings, **values, **form)
    fixed, free = ([name for name in values if (name in FIXED) == is_fixed] for is_fixed in (True, False))
    return changed_settings(before, new, fixed), changed_settings(before, new, free)


def _on_command_line(value: Any) -> str:
    """Format a value as on the command line. Lists are sorted, because their order has no meaning."""
    return " ".join(sorted(value)) if isinstance(value, tuple) else str(value)


def with_default_search(decoding: DecodingSettings, directory: Path) -> DecodingSettings:
    """Return the decoding settings, using the default search of an attempt if they do not specify a search.

    Raises UserError if the combined settings are invalid.
    """
    return over_default(decoding, default_search((directory / RETRIEVAL).exists()))
