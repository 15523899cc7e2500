"""Settings in files: an attempt's config.json, or the file of --config, which flags override."""

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
from chatbot.config.model import OF_RECURRENT, OF_TRANSFORMER, ModelSettings, check_architecture
from chatbot.config.run import RunSettings, settings_of_presets
from chatbot.config.training import TRAIN, Settings
from chatbot.durable import read_json
from chatbot.errors import UserError
from chatbot.flags import REMOVED, compose, flag_of, flags_for, flags_of, flatten

# Settings whose value "auto" was replaced in config.json by the one chosen for the attempt.
CHOSEN = ("both_directions", "precision")
# Settings that replace each other: a flag of a group replaces all of the group in a file.
ALTERNATIVES = ({"steps", "epochs"}, {"data", "source_file", "target_file"}, {"batch_size", "batch_tokens"})
# Settings that a run may change of those that a pretrained model gives.
FREE_OF_PRETRAINED = {"keep_prob", "learning_rate", "both_directions"}
# Those of its tokens, which no later attempt changes either.
OF_PIECES = {"tokenizer", "dictionary", "vocabulary_size"}
# Settings that have no effect without validation.
OF_VALIDATION = ("patience", "validate_every")


def train_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Parse the command line of train.py; see `settings_over_config`. Raises UserError."""
    return settings_over_config(TRAIN.values(arguments))


def settings_over_config(flags: dict[str, Any]) -> Settings:
    """Return the settings of a run: defaults, overridden by those that the attempt was begun with, then by the file
    named by `config`, then by the given flat values.

    Prints what is taken from the attempt, unless it is to be quiet. Raises UserError for a file or a value that cannot
    be used, and for a flag that is given, be it with its default, and has no effect beside the other settings.
    """
    config: dict[str, Any] = {}
    if flags.get("config"):
        from chatbot.config.template import read_chosen

        config = read_chosen(Path(flags["config"]))
    if flags.get("batch_size") and flags.get("batch_tokens"):
        raise UserError("--batch-size and --batch-tokens: each says how large a batch is; give one")
    with contextlib.redirect_stdout(io.StringIO() if _overridden(config, flags).get("quiet") else sys.stdout):
        settings = _settings_over_config(flags, config)
    check_architecture(settings.model.architecture, flags)
    unused = [name for name in OF_VALIDATION if name in flags and settings.encoding.validation == NONE]
    if unused:
        raise UserError(f"{flag_of(unused[0])}: not used with --validation {NONE}; leave it out")
    return settings


def _settings_over_config(flags: dict[str, Any], config: dict[str, Any]) -> Settings:
    if config and (folder := _attempt_folder(Path(flags["config"]), "attempt" in flags)):
        config = {**config, "attempt": folder}
    given = _overridden(config, flags)
    attempt = given.get("attempt", RunSettings.attempt)
    flags_of(RunSettings)["attempt"].check(attempt)
    config_file = attempt_directory(attempt) / CONFIG
    if given.get("selftest"):
        return compose(Settings, **given)
    if not config_file.exists():
        inherited = _inherited(given["init_from"], given) if given.get("init_from") else {}
        fixed = flags_of(ModelSettings) if given.get("init_from") else {}  # by the weights of the other attempt
        not_given = settings_of_presets() - {*fixed, *inherited, *given}
        return compose(Settings, **_overridden(inherited, given), not_given=not_given)
    own = {**read_settings(config_file.absolute()), "attempt": attempt}
    copied = config_file.with_name(DICTIONARY)
    if own.get("dictionary") and not Path(own["dictionary"]).exists() and copied.exists():
        own["dictionary"] = str(copied)  # the original is gone, such as that of --init-from
    # What may have been "auto" is so again: the attempt keeps its choice, and machines without this file, which are to
    # use identical settings, have "auto", too.
    values = _overridden({name: value for name, value in own.items() if name not in CHOSEN}, given)
    # What the preset has set is shown, without its name.
    kept = {name: value for name, value in values.items() if name not in {"preset", *given}}
    if kept_flags := flags_for(Settings, kept):
        print(f"Settings of {config_file}: {kept_flags}")
    return compose(Settings, **values)


def _attempt_folder(config: Path, attempt_given: bool) -> str | None:
    """Return the attempt that a --config file belongs to, by the name of its folder; None for a file elsewhere.

    Raises UserError for the file of an attempt in another directory, unless --attempt is given.
    """
    folder = Path(os.path.abspath(config)).parent
    if CHECKPOINTS.is_dir() and folder.parent.is_dir() and folder.parent.samefile(CHECKPOINTS):
        return folder.name
    if not attempt_given and config.name == CONFIG and (folder / VOCABULARY).exists():
        raise UserError(
            f"--config {config}: {folder} is an attempt, but not in {CHECKPOINTS.absolute()}; run the command in the "
            f"folder that has it in {CHECKPOINTS}/, or begin a new attempt here with --attempt"
        )
    return None


def _inherited(attempt: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of model, tokenizer and cleaning that --init-from takes, and print them.

    Raises UserError when there is no such attempt or pretrained model.
    """
    from chatbot.pretrained.folder import pretrained_model

    if (model := pretrained_model(attempt)) is not None:
        if Path(attempt).name == attempt and (CHECKPOINTS / attempt / CONFIG).exists():
            remedy = f"give ./{attempt}, or {CHECKPOINTS}/{attempt}"
            raise UserError(f"--init-from {attempt}: a pretrained model and an attempt have this name; {remedy}")
        folder = model.folder
        values = model.settings()
        kept = {*values, "vocabulary_size"} - FREE_OF_PRETRAINED
    else:
        folder = trained_directory(attempt, "--init-from")
        of_model = flags_of(ModelSettings).keys() - {"word_vectors"}  # its weights have them
        names = {*of_model, "form", "clean", "tokenizer", "dictionary", "vocabulary_size"}
        values = read_settings(folder / CONFIG)
        kept = OF_PIECES if "form" in values else set()
        if kept:
            names |= FREE_OF_PRETRAINED
        values = {name: value for name, value in values.items() if name in names}
        if values.get("dictionary"):
            values["dictionary"] = str(folder / DICTIONARY)
    for name in kept & {*given}:
        if given[name] != values.get(name):
            flag = " ".join(flags_of(Settings)[name].words(given[name]))
            raise UserError(f"{flag}: not that of the pretrained model in {folder}; leave it out")
    if kept_flags := flags_for(Settings, {name: value for name, value in values.items() if name not in given}):
        print(f"Settings of {folder / CONFIG}: {kept_flags}")
    return values


def _overridden(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values, overridden by those given. One of a group replaces the others of the group, too.

    So does another architecture the settings of the one before.
    """
    replaced = {name for group in ALTERNATIVES if group & given.keys() for name in group}
    architecture = values.get("architecture", ModelSettings.architecture)
    if given.get("architecture", architecture) != architecture:
        replaced |= {*OF_RECURRENT, *OF_TRANSFORMER}
    return {**{name: value for name, value in values.items() if name not in replaced}, **given}


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in an attempt's config.json. Raises UserError for a file that cannot be used."""
    remedy = "restore it from a backup, or use another file"
    try:
        values = read_json(path)
    except OSError as error:
        raise UserError(f"{path}: settings cannot be read ({error.strerror}); {remedy}") from None
    except ValueError:
        raise UserError(f"{path}: damaged, not JSON; {remedy}") from None
    known = flags_of(Settings)
    many = {name for name, flag in known.items() if flag.many}
    if not isinstance(values, dict) or not all(isinstance(values.get(name, []), list) for name in many):
        raise UserError(f"{path}: damaged, a JSON object of settings expected; {remedy}")
    if values.get("input_feeding"):  # the weights have other shapes
        raise UserError(f"{path}: trained with --input-feeding, which was removed; train another attempt without it")
    values = {name: value for name, value in values.items() if name not in REMOVED}
    form = {"form": Form.of(values.pop("form"))} if "form" in values else {}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        settings = "setting" if len(unknown) == 1 else "settings"
        raise UserError(
            f"{path}: unknown {settings} {', '.join(map(repr, unknown))}, perhaps of another version; remove from the "
            f"file what {program('train')} --help does not list"
        )
    return {name: tuple(value) if name in many else value for name, value in values.items()} | form


def stored_settings(path: Path) -> Settings:
    """Return the settings in an attempt's config.json. Raises UserError for a damaged file or a value not allowed."""
    try:
        return compose(Settings, **read_settings(path))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def storable(settings: Settings) -> dict[str, Any]:
    """Return the content of config.json: every setting that is declared as stored."""
    values = flatten(settings)
    form = {} if settings.model.form is None else {"form": dataclasses.asdict(settings.model.form)}
    return {name: values[name] for name, flag in flags_of(Settings).items() if flag.stored} | form


FIXED = [name for name, flag in flags_of(Settings).items() if flag.fixed]
# The settings that change the pairs read from the same files, and those that change the weights of the model.
OF_PAIRS = [name for name, flag in (flags_of(CorpusSettings) | flags_of(EncodingSettings)).items() if flag.stored]
OF_WEIGHTS = [name for name in flags_of(ModelSettings) if name in FIXED and name != "max_length"]


def changed_settings(old: Settings, new: Settings, names: Sequence[str] = FIXED) -> list[str]:
    """Return those of some settings that differ, as '--flag old -> new'. A new "auto" keeps the earlier choice.

    Of another architecture, its own sizes are not compared.
    """
    before = flatten(old)
    after = flatten(new)
    if before["architecture"] != after["architecture"]:
        names = [name for name in names if name not in (*OF_RECURRENT, *OF_TRANSFORMER)]
    return [
        f"{flag_of(name)} {_on_command_line(before[name])} -> {_on_command_line(after[name])}"
        for name in names
        if after[name] != AUTO and _on_command_line(before[name]) != _on_command_line(after[name])
    ]


def changed_values(old: dict[str, Any], new: Settings) -> tuple[list[str], list[str]]:
    """Return the fixed settings that differ, and the others, each as '--flag old -> new'.

    old: values of an earlier `storable`; what it lacks, or what is no setting any more, is not compared. Raises
    UserError for a value that is not allowed, and TypeError.
    """
    flags = {name: flag for name, flag in flags_of(Settings).items() if name in old and flag.stored}
    values = {name: tuple(old[name]) if flag.many else old[name] for name, flag in flags.items()}
    form = {"form": Form.of(old["form"])} if "form" in old else {}
    before = compose(Settings, **values, **form)
    fixed, free = ([name for name in values if (name in FIXED) == is_fixed] for is_fixed in (True, False))
    return changed_settings(before, new, fixed), changed_settings(before, new, free)


def _on_command_line(value: Any) -> str:
    """Return the value as text; several values are sorted, since their order has no meaning."""
    return " ".join(sorted(value)) if isinstance(value, tuple) else str(value)


def with_default_search(decoding: DecodingSettings, directory: Path) -> DecodingSettings:
    """Return the settings of decoding, with the default search of the attempt if they choose none.

    Raises UserError as `DecodingSettings`.
    """
    return over_default(decoding, default_search((directory / RETRIEVAL).exists()))
