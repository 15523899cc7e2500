"""Renames the folders of an attempt, and removes what no attempt needs."""

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chatbot.attempts.attempt import check_not_training, is_training, size_of
from chatbot.attempts.table import megabytes
from chatbot.config.attempts import (
    CHECKPOINTS,
    CONFIG,
    TENSORBOARD,
    DeleteSettings,
    PruneSettings,
    RenameSettings,
    attempt_directory,
)
from chatbot.config.stored import stored_settings
from chatbot.display import aligned, counted
from chatbot.errors import UserError
from chatbot.inference.ratings import RATINGS, rename_model
from chatbot.model.checkpoint import checkpoint_path, group_sizes, pointed_steps, saved_steps, verified_manifest

# What a run may leave in the folder of an attempt that never saved a checkpoint. A folder with anything else is kept.
OWN = re.compile(
    r"config\.json|vocabulary\.txt|dictionary\.txt|data\.json|ngrams\.npz|retrieval|metrics\.jsonl|curves\.png"
    r"|lock|saving|.*\.part|ckpt-\d+\..*"
)
# What a run leaves in the folder of its curves, below it or below one of its folders. A folder with anything else is
# kept.
OWN_CURVES = re.compile(
    r"([^/]+/)?(events\.out\.tfevents\.[^/]+|(layout|settings|graph)\.part"
    r"|(embedding\.bytes|words\.tsv|projector_config\.pbtxt)(\.part)?"
    r"|plugins/profile/[^/]+/[^/]+\.pb)"
)


class Unneeded(NamedTuple):
    """A group of files that no attempt needs."""

    name: str
    why: str
    paths: list[Path]


def prune(settings: PruneSettings) -> None:
    """Print what no attempt needs; remove it if that is set. Raises UserError for an attempt that cannot be pruned."""
    unneeded = list(find_unneeded(settings))
    if not unneeded:
        print("Nothing to remove.")
        return
    sizes = [sum(map(size_of, group.paths)) for group in unneeded]
    rows = [[megabytes(size), group.name, group.why] for size, group in zip(sizes, unneeded, strict=True)]
    print(*aligned(rows, [False, True, True]), sep="\n")
    if not settings.yes:
        print(f"{megabytes(sum(sizes))} in all. Nothing was removed; the same command with --yes removes it.")
        return
    for group in unneeded:
        for path in group.paths:
            remove(path)
    print(f"Removed: {megabytes(sum(sizes))}.")


def find_unneeded(settings: PruneSettings) -> Iterator[Unneeded]:
    """Yield what no attempt needs; leave out, or refuse if named, one that is damaged or being trained."""
    names = settings.attempts or sorted({path.name for path in (*_folders(CHECKPOINTS), *_folders(TENSORBOARD))})
    for name in names:
        attempt, curves = CHECKPOINTS / name, TENSORBOARD / name
        if not attempt.is_dir() and not curves.is_dir():
            raise UserError(f"prune {name}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
        try:
            if attempt.is_dir():
                check_not_training(attempt)
                yield from unneeded_in(attempt, settings.keep)
            elif has_only_curves(curves):
                yield Unneeded(str(curves), "curves of an attempt that is gone", [curves])
        except UserError as error:
            if settings.attempts:
                raise
            print(f"{name} is left out: {error}")


def unneeded_in(directory: Path, keep: int | None) -> Iterator[Unneeded]:
    """Yield what an attempt does not need. keep: the number of newest checkpoints that stay, by default its own.

    Raises UserError where pointers, settings or named checkpoints are damaged: what it needs is not known.
    """
    steps, named = saved_steps(directory), {*pointed_steps(directory).values()}
    if not named:
        if not steps and all(OWN.fullmatch(path.name) for path in directory.iterdir()):
            curves = TENSORBOARD / directory.name
            paths = [directory, curves] if has_only_curves(curves) else [directory]
            yield Unneeded(str(directory), "never saved a checkpoint", paths)
        return
    for step in named:
        path = checkpoint_path(directory, step)
        verified_manifest(path)  # if it is damaged, an older one may be the only whole one
        group_sizes(path)
    kept = named | {*steps[: keep or stored_settings(directory / CONFIG).run.keep]}
    files = defaultdict(list)
    for path in directory.iterdir():
        if match := re.match(r"ckpt-(\d+)\.", path.name):
            files[int(match[1])].append(path)
    for step in sorted(files.keys() - kept):
        yield Unneeded(str(checkpoint_path(directory, step)), "neither last nor best", files[step])
    if parts := sorted(directory.glob("*.part")):
        yield Unneeded(str(parts[0]), "of a process that was killed", parts)


def has_only_curves(folder: Path) -> bool:
    """Return whether a folder has curves of an attempt, and no file that no run has written."""
    files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return bool(files) and all(OWN_CURVES.fullmatch(path.relative_to(folder).as_posix()) for path in files)


def remove(path: Path) -> None:
    """Remove a file, or a folder that no run has locked since it was listed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif not is_training(path):
        shutil.rmtree(path)


def _folders(path: Path) -> list[Path]:
    return [folder for folder in path.iterdir() if folder.is_dir()] if path.is_dir() else []


def delete(settings: DeleteSettings) -> None:
    """Print the folders of attempts; delete them if that is set. Raises UserError for one that is being trained."""
    folders = []
    for name in settings.attempts:
        attempt = attempt_directory(name, "delete")
        found = [folder for folder in (attempt, TENSORBOARD / name) if folder.is_dir()]
        if not found:
            raise UserError(f"delete {name}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
        check_not_training(attempt)
        folders += found
    print(*aligned([[megabytes(size_of(folder)), str(folder)] for folder in folders], [False, True]), sep="\n")
    if not settings.yes:
        print("Nothing was deleted; the same command with --yes deletes it.")
        return
    for folder in folders:
        shutil.rmtree(folder)
    print("Deleted.")


def rename(settings: RenameSettings) -> None:
    """Rename an attempt's folders in checkpoints/ and tensorboard/.

    Raises UserError if there is no such attempt, if a process trains it, or if the new name is taken.
    """
    old, new = settings.names
    attempt, renamed = (attempt_directory(name, "rename") for name in settings.names)
    if not attempt.is_dir():
        raise UserError(f"rename {old}: no such attempt in {CHECKPOINTS.absolute()}; check the name")
    for folder in (renamed, TENSORBOARD / new):
        if folder.exists():
            raise UserError(f"rename {old} {new}: {folder} exists already; choose another name")
    check_not_training(attempt)
    # The name of the folder counts, not the one in its settings.
    attempt.rename(renamed)
    curves = (TENSORBOARD / old).is_dir()
    if curves:
        (TENSORBOARD / old).rename(TENSORBOARD / new)
    print(f"{attempt} is now {renamed}" + (f", and {TENSORBOARD / old} is {TENSORBOARD / new}" if curves else ""))
    if ratings := rename_model(RATINGS, old, new):
        print(f"{RATINGS}: {counted(ratings, 'rating')} of {old}, now of {new}")
