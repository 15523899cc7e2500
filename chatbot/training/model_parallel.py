"""Model parallelism: a tower whose encoder, decoder and projection are on different devices.

This is for models that do not fit on one device. The parts of a tower run one after another, so three devices are not
three times as fast as one. Several such towers train in parallel.
"""

from collections.abc import Sequence

from chatbot.corpus.reading.display import counted
from chatbot.errors import UserError
from chatbot.training.devices import Parts, Tower


def spread(towers: Sequence[Tower]) -> list[Tower]:
    """Group one-device towers into towers of three devices, or of two if their number is not a multiple of 3.

    Raises UserError if the number of devices is a multiple of neither 3 nor 2.
    """
    size = next((size for size in (3, 2) if len(towers) % size == 0), None)
    if size is None:
        raise UserError(
            f"--model-parallel: {counted(len(towers), 'device')} cannot be grouped in twos or threes; use 2, 3, 4, 6, "
            "..., with --gpus, or with --towers if there is no GPU"
        )
    return [_spread_tower(towers[i : i + size]) for i in range(0, len(towers), size)]


def _spread_tower(devices: Sequence[Tower]) -> Tower:
    """Join two or three devices into one tower.

    Of two devices, the second has decoder and projection, between which most data passes.
    """
    encoder, decoder, projection = devices[0], devices[1], devices[-1]
    return Tower(
        name="+".join(device.name for device in devices),
        device=projection.device,
        model=projection.model,
        memory=None,
        parts=Parts(encoder.device, decoder.device, projection.device),
    )


def plan(towers: Sequence[Tower]) -> list[str]:
    """Return a line for each tower with the devices of its parts."""
    lines = []
    for i, tower in enumerate(towers):
        assert tower.parts is not None
        encoder, decoder, projection = tower.parts
        lines.append(
            f"tower {i}: encoder on {encoder}, decoder and attention on {decoder}, embedding, projection and loss on "
            f"{projection}"
        )
    return lines
