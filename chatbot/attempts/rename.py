"""Renames an attempt."""

from chatbot.attempts.attempt import check_not_training
from chatbot.config.attempts import CHECKPOINTS, CONFIG, TENSORBOARD
from chatbot.config.stored import read_settings
from chatbot.durable import write_json
from chatbot.errors import UserError


def rename(old: str, new: str) -> None:
    """Rename the folders of an attempt in checkpoints/ and tensorboard/, and its name in config.json.

    Raises UserError if there is no such attempt, if a process trains it, or if the new name is taken.
    """
    attempt, renamed = CHECKPOINTS / old, CHECKPOINTS / new
    if not attempt.is_dir():
        raise UserError(f"rename {old}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
    for folder in (renamed, TENSORBOARD / new):
        if folder.exists():
            raise UserError(f"rename {old} {new}: {folder} exists already; choose another name")
    check_not_training(attempt)
    try:
        values = read_settings(attempt / CONFIG)
    except UserError:  # a damaged attempt can be renamed, too
        values = {}
    curves = (TENSORBOARD / old).is_dir()
    if curves:
        (TENSORBOARD / old).rename(TENSORBOARD / new)
    try:
        attempt.rename(renamed)
    except OSError:
        if curves:
            (TENSORBOARD / new).rename(TENSORBOARD / old)
        raise
    # The name of the folder counts, so an attempt with the old name in its settings works, too.
    if "attempt" in values:
        write_json(renamed / CONFIG, {**values, "attempt": new})
    print(f"{attempt} is now {renamed}" + (f", and {TENSORBOARD / old} is {TENSORBOARD / new}" if curves else ""))
