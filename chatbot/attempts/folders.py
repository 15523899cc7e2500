"""Deletes and renames attempts together with their TensorBoard folders."""

import shutil

from chatbot.attempts.description import check_not_training
from chatbot.attempts.table import megabytes
from chatbot.config.attempts import CHECKPOINTS, RATINGS, TENSORBOARD, DeleteSettings, RenameSettings, attempt_directory
from chatbot.display import align_columns, pluralize
from chatbot.durable import size_of
from chatbot.errors import UserError
from chatbot.retrieval.ratings import rename_model


def delete(settings: DeleteSettings) -> None:
    """Print the folders of attempts, and delete them if --yes is given. Raises UserError if one is being trained."""
    folders = []
    for name in settings.attempts:
        attempt = attempt_directory(name, "delete")
        found = [folder for folder in (attempt, TENSORBOARD / name) if folder.is_dir()]
        if not found:
            raise UserError(f"delete {name}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
        check_not_training(attempt)
        folders += found
    print(*align_columns([[megabytes(size_of(folder)), str(folder)] for folder in folders], [False, True]), sep="\n")
    if not settings.yes:
        print("Nothing was deleted; to delete these folders, add --yes.")
        return
    for folder in folders:
        shutil.rmtree(folder)
    print("Deleted.")


def rename(settings: RenameSettings) -> None:
    """Rename the folders of an attempt in checkpoints/ and tensorboard/.

    Raises UserError if there is no such attempt, if a process is training it, or if the new name is in use.
    """
    old, new = settings.names
    attempt, renamed = (attempt_directory(name, "rename") for name in settings.names)
    if not attempt.is_dir():
        raise UserError(f"rename {old}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
    for folder in (renamed, TENSORBOARD / new):
        if folder.exists():
            raise UserError(f"rename {old} {new}: {folder} exists already; choose another name")
    check_not_training(attempt)
    # The name in config.json is not changed, because the program only uses the name of the folder.
    attempt.rename(renamed)
    curves = (TENSORBOARD / old).is_dir()
    if curves:
        (TENSORBOARD / old).rename(TENSORBOARD / new)
    print(f"{attempt} is now {renamed}" + (f", and {TENSORBOARD / old} is {TENSORBOARD / new}" if curves else ""))
    if ratings := rename_model(RATINGS, old, new):
        print(f"{RATINGS}: {pluralize(ratings, 'rating')} of {old}, now of {new}")
