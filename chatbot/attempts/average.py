"""The mean of the weights of several checkpoints, as a new attempt (Vaswani et al. 2017)."""

import dataclasses
import re
import shutil
from pathlib import Path

from chatbot.attempts.attempt import check_saved, checkpoints_of, read_attempt
from chatbot.attempts.variables import Variable, read_variables
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
from chatbot.model.checkpoint_files import manifest_of, manifest_path, verified_manifest


def average(settings: AverageSettings) -> None:
    """Write the new attempt. Raises UserError for a broken attempt, and for checkpoints that are missing, damaged or of
    other weights."""
    source, target = trained_directory(settings.checkpoints[0], "average"), CHECKPOINTS / settings.target
    if target.exists():
        raise UserError(f"average {source.name}: {target} exists already; give another name with --to")
    check_saved(read_attempt(source), "average")
    steps = chosen_steps(source, settings.checkpoints[1:])
    shapes = common_shapes(source, steps)
    values = {**read_settings(source / CONFIG), "attempt": target.name}

    part = target.with_name(f".{target.name}.part")  # a hidden folder is not an attempt
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        write_mean(source, steps, shapes, part / f"ckpt-{steps[-1]}")
        for name in (VOCABULARY, DATA, DICTIONARY, NGRAMS):
            if (source / name).exists():
                shutil.copy(source / name, part / name)
        write_json(part / CONFIG, values)
        # `best` also says that the search is the one of validated attempts (chatbot.config.stored).
        for name in (LAST, BEST) if is_validated(source) else (LAST,):
            write_json(part / name, {"checkpoint": f"ckpt-{steps[-1]}", "step": steps[-1]})
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(
        f"{target}: the mean of the weights of {source.name} at the steps {', '.join(f'{step:,}' for step in steps)}."
    )
    print(f"Talk to it: {program('chat.py')} --attempt {target.name}")


def chosen_steps(source: Path, names: tuple[str, ...]) -> list[int]:
    """Return the steps of these checkpoints in ascending order, or of all that the attempt has.

    Raises UserError for one that is missing, and for fewer than two.
    """
    there = [step for step in checkpoints_of(source) if (source / f"ckpt-{step}.index").exists()]
    have = f"there are: {', '.join(f'ckpt-{step}' for step in there) or 'none'}"
    steps = there
    if names:
        found = [re.fullmatch(r"(?:ckpt-)?(\d+)", name) for name in names]
        steps = sorted({int(match[1]) if match else -1 for match in found})
        for name, match in zip(names, found, strict=True):
            if match is None or int(match[1]) not in there:
                raise UserError(f"average {source.name}: no checkpoint {name}; {have}")
    if len(steps) < 2:
        raise UserError(f"average {source.name}: give two checkpoints or more; {have}; train.py --keep N keeps more")
    return steps


def common_shapes(source: Path, steps: list[int]) -> list[tuple[int, ...]]:
    """Return the shapes of the weights of these checkpoints. Raises UserError if they differ."""
    shapes = {step: _shapes(read_variables(source / f"ckpt-{step}")) for step in steps}
    for step in steps:
        if shapes[step] != shapes[steps[0]]:
            raise UserError(
                f"average {source.name}: ckpt-{step} does not have the weights of ckpt-{steps[0]}; average "
                "checkpoints of one model"
            )
    return shapes[steps[0]]


def _shapes(variables: list[Variable]) -> list[tuple[int, ...]]:
    return [variable.shape for variable in variables if variable.group == "weights"]


def write_mean(source: Path, steps: list[int], shapes: list[tuple[int, ...]], path: Path) -> None:
    """Write a checkpoint whose weights are the mean of those of these steps, computed in float64.

    Raises UserError for a checkpoint that does not have the checksums of its manifest.
    """
    for step in steps:
        verified_manifest(source / f"ckpt-{step}")
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    import numpy as np

    from chatbot.model.saved import read_values, tensor_name
    from chatbot.training.checkpoints.content import Snapshot
    from chatbot.training.checkpoints.progress import Progress

    sums = [np.zeros(shape, np.float64) for shape in shapes]
    for step in steps:
        values = read_values(source / f"ckpt-{step}", "weights", shapes)
        sums = [total + value for total, value in zip(sums, values, strict=True)]
    means = [(total / len(steps)).astype(value.dtype) for total, value in zip(sums, values, strict=True)]
    progress = Progress(step=steps[-1])
    tensors = {tensor_name("weights", number): mean for number, mean in enumerate(means)}
    Snapshot(progress, False, tensors).write_tensors(path)
    write_json(manifest_path(path), manifest_of(path, {"progress": dataclasses.asdict(progress)}))
