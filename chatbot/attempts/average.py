"""The mean of the weights of several checkpoints, as a new attempt (Vaswani et al. 2017)."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from chatbot.attempts.attempt import check_saved, read_attempt
from chatbot.config.attempts import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    DATA,
    DICTIONARY,
    LAST,
    NGRAMS,
    VOCABULARY,
    AverageSettings,
    is_validated,
    trained_directory,
)
from chatbot.config.stored import read_settings
from chatbot.durable import write_json
from chatbot.errors import UserError
from chatbot.flags import program
from chatbot.model.checkpoint import (
    Array,
    checkpoint_path,
    read_group,
    saved_steps,
    verified_manifest,
    write_checkpoint,
)
from chatbot.training.checkpoints.progress import Progress


def average(settings: AverageSettings) -> None:
    """Write the new attempt. Raises UserError for checkpoints that are missing, damaged or of other weights."""
    source, target = trained_directory(settings.checkpoints[0], "average"), CHECKPOINTS / settings.target
    if target.exists():
        raise UserError(f"average {source.name}: {target} exists already; give another name with --to")
    check_saved(read_attempt(source), "average")
    steps = chosen_steps(source, settings.checkpoints[1:])
    means = mean_weights(source, steps)
    values = {**read_settings(source / CONFIG), "attempt": target.name}

    part = target.with_name(f".{target.name}.part")  # a hidden folder is not an attempt
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        progress = Progress(step=steps[-1])
        path = checkpoint_path(part, progress.step)
        write_checkpoint(path, {"weights": means}, {"progress": dataclasses.asdict(progress)})
        for name in (VOCABULARY, DATA, DICTIONARY, NGRAMS):
            if (source / name).exists():
                shutil.copy(source / name, part / name)
        write_json(part / CONFIG, values)
        # `best` also says that the search is the one of validated attempts (chatbot.config.stored).
        for name in (LAST, BEST) if is_validated(source) else (LAST,):
            write_json(part / name, {"checkpoint": path.name, **dataclasses.asdict(progress)})
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(
        f"{target}: the mean of the weights of {source.name} at the steps {', '.join(f'{step:,}' for step in steps)}."
    )
    print(f"Talk to it: {program('chat.py')} --attempt {target.name}")


def chosen_steps(source: Path, names: tuple[str, ...]) -> list[int]:
    """Return the steps of these checkpoints, or of all, in ascending order. Raises UserError for fewer than two."""
    there = {f"ckpt-{step}": step for step in saved_steps(source)[::-1]}
    have = f"there are: {', '.join(there) or 'none'}"
    for name in names:
        if name not in there:
            raise UserError(f"average {source.name}: no checkpoint {name}; {have}")
    steps = sorted({there[name] for name in names or there})
    if len(steps) < 2:
        raise UserError(f"average {source.name}: give two checkpoints or more; {have}; train.py --keep N keeps more")
    return steps


def mean_weights(source: Path, steps: list[int]) -> list[Array]:
    """Return the mean of the weights of these checkpoints, computed in float64.

    Raises UserError for a checkpoint that is damaged, or has other weights.
    """
    paths = [checkpoint_path(source, step) for step in steps]
    for path in paths:
        verified_manifest(path)
    first = read_group(paths[0], "weights")
    sums = [value.astype(np.float64) for value in first]
    for path in paths[1:]:
        values = read_group(path, "weights")
        if [value.shape for value in values] != [value.shape for value in first]:
            raise UserError(
                f"average {source.name}: {path.name} does not have the weights of {paths[0].name}; average checkpoints "
                "of one model"
            )
        for total, value in zip(sums, values, strict=True):
            total += value
    return [(total / len(steps)).astype(value.dtype) for total, value in zip(sums, first, strict=True)]
