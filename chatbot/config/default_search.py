"""The search that an attempt uses when no flag chooses one."""

from pathlib import Path

from chatbot.config.attempts import CONFIG, is_validated
from chatbot.config.decoding import DecodingSettings, default_search, over_default
from chatbot.config.stored import stored_settings


def with_default_search(decoding: DecodingSettings, directory: Path) -> DecodingSettings:
    """Return the settings of decoding, with the default search of the attempt in a directory if they choose none.

    Raises UserError as `DecodingSettings`, and for an attempt whose settings cannot be read.
    """
    if decoding.chooses_search:
        return decoding
    both_directions = stored_settings(directory / CONFIG).learning.both_directions == "on"
    return over_default(decoding, default_search(is_validated(directory), both_directions))
