"""Chooses defaults of a new attempt: the preset by the number of pairs, and the batch size by the number of GPUs."""

from typing import Any

from chatbot.config.corpus import AUTO, NONE
from chatbot.config.run import base_batch, preset_for, values_of_preset
from chatbot.config.training import Settings
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.flags import flags_for, replace

# On one H100, a step of this many pairs took 1.3 times as long as one of 64 (docs/experiments.md).
PAIRS_PER_GPU = 512
# Batches of four times the preset's size cost 0.03 nats with 377 steps per epoch, and larger ones more. Twice the size
# cost 0.003 with 754 steps (docs/experiments.md).
MAX_SCALE = 4
MIN_STEPS_PER_EPOCH = 700


def choose_preset(settings: Settings, pairs: int, validated: bool) -> dict[str, Any]:
    """Choose the preset of a new attempt, and print the settings that it changes.

    A preset is a set of default values for a corpus size. Values that conflict with other settings are skipped.

    Args:
        settings: The settings of the run.
        pairs: The number of training pairs.
        validated: Whether there are validation pairs. Without them, the default is to use no preset.

    Returns:
        The chosen settings, by name, including the preset itself.
    """
    by_pairs = preset_for(pairs) if validated else NONE
    name = by_pairs if settings.run.preset == AUTO else settings.run.preset
    chosen: dict[str, Any] = {"preset": name}
    if name == NONE:
        return chosen
    conflicting = {}
    for setting, value in values_of_preset(name, settings.model.architecture).items():
        if setting not in settings.run.not_given:
            continue
        try:
            replace(settings, **chosen, **{setting: value})
        except UserError:
            conflicting[setting] = value
        else:
            chosen[setting] = value
    values = flags_for(Settings, {key: value for key, value in chosen.items() if key != "preset"}) or "sets nothing"
    skipped = (
        f"; without {flags_for(Settings, conflicting)}, which conflicts with other settings" if conflicting else ""
    )
    print(f"Preset {name}, for {pluralize(pairs, 'pair')} (--preset): {values}{skipped}.")
    return chosen


def choose_batch(settings: Settings, examples: int, gpus: int) -> dict[str, Any]:
    """Choose the batch size of a new attempt on GPUs, and print the choice.

    The default is PAIRS_PER_GPU pairs for each GPU, halved until the batch is within the measured limits. The choice is
    left to the user if a flag sets the size of batches, and for kinds of training that were not measured. If memory
    does not suffice for a batch, the training step splits it.

    Args:
        settings: The settings of the run, including its preset.
        examples: The number of pairs in an epoch, in both directions.
        gpus: The number of GPUs on all machines.

    Returns:
        The chosen settings, by name; none if the preset's batch size is not smaller.
    """
    learning, parallel = settings.learning, settings.parallel
    unmeasured = parallel.asynchronous or parallel.model_parallel or settings.run.init_from is not None
    by_user = "batch_size" not in settings.run.not_given or learning.batch_tokens is not None or learning.accumulate > 1
    base = base_batch(settings.run.preset, settings.model.architecture)
    pairs = PAIRS_PER_GPU
    while pairs * gpus > min(MAX_SCALE * base, examples // MIN_STEPS_PER_EPOCH):
        pairs //= 2
    if unmeasured or by_user or pairs * gpus <= base:
        return {}
    chosen: dict[str, Any] = {"batch_size": pairs * gpus}
    if {"learning_rate", "scale_learning_rate"} <= settings.run.not_given:
        chosen["scale_learning_rate"] = "linear"
    share = f"{pairs} pairs for {'the GPU' if gpus == 1 else f'each of {gpus} GPUs'}"
    reason = f"{share}, because fewer would keep it less busy"
    print(f"Batches: {flags_for(Settings, chosen)} ({reason}). To train as on a CPU, add --batch-size {base}.")
    return chosen
