"""The settings of a new attempt that follow the number of its training pairs (--preset)."""

from typing import Any

from chatbot.config.corpus import AUTO, NONE
from chatbot.config.presets import PRESETS, preset_for
from chatbot.config.stored import as_flags
from chatbot.config.training import Settings
from chatbot.corpus.reading.display import counted
from chatbot.errors import UserError
from chatbot.flags import flatten, replace
from chatbot.training.streams import print_wrapped


def preset_values(settings: Settings, pairs: int, validated: bool) -> dict[str, Any]:
    """Return the preset of a new attempt and the values that it sets, by name, and print them.

    A value that a given setting excludes is left out. pairs: the number of training pairs. validated: whether there are
    validation pairs. Without them, the aim is to learn the pairs by heart, which needs no preset.
    """
    by_pairs = preset_for(pairs) if validated else NONE
    name = by_pairs if settings.run.preset == AUTO else settings.run.preset
    chosen: dict[str, Any] = {"preset": name}
    if name == NONE:
        return chosen
    excluded = {}
    for setting, value in PRESETS[name].items():
        if setting not in settings.run.not_given:
            continue
        try:
            replace(settings, **chosen, **{setting: value})
        except UserError:
            excluded[setting] = value
        else:
            chosen[setting] = value
    values = as_flags({key: value for key, value in chosen.items() if key != "preset"}) or "sets nothing"
    without = f"; without {as_flags(excluded)}, which other settings exclude" if excluded else ""
    print_wrapped(f"Preset {name}, for {counted(pairs, 'pair')} (--preset): {values}{without}.")
    return chosen


def kept_values(settings: Settings, began: Settings) -> dict[str, Any]:
    """Return the preset of a resumed attempt and the settings that are not given, by name, as it began with them.

    A process that was started again has the settings from before the preset was chosen.
    """
    values = flatten(began)
    return {name: values[name] for name in settings.run.not_given} | (
        {"preset": began.run.preset} if settings.run.preset == AUTO else {}
    )
