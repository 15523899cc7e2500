"""Model parallelism: a tower whose encoder, decoder and projection are on different devices.

For a model that one device cannot hold. The parts wait for each other, so a tower of three devices is
not three times as fast; several such towers train side by side.
"""

from collections.abc import Sequence

from chatbot.errors import UserError
from chatbot.training.devices import Parts, Tower


def spread(towers: Sequence[Tower]) -> list[Tower]:
    """One tower for each three devices, or for each two where three do not divide them.

    Raises UserError for a number of devices that neither divides.
    """
    size = next((size for size in (3, 2) if len(towers) % size == 0), None)
    if size is None:
        raise UserError(
            f"--model-parallel: {len(towers)} devices cannot be shared out in twos or threes; give 2, 3, 4, 6, ..., "
            "by --gpus, or by --towers without GPUs"
        )
    groups = [towers[at : at + size] for at in range(0, len(towers), size)]
    return [_joined(group) for group in groups]


def _joined(devices: Sequence[Tower]) -> Tower:
    """With two devices, the decoder and the projection share one: between them travels the most."""
    encoder, decoder, projection = devices[0], devices[1], devices[-1]
    return Tower(
        name="+".join(device.name for device in devices),
        device=projection.device,
        model=projection.model,
        memory=None,
        parts=Parts(encoder.device, decoder.device, projection.device),
    )


def plan(towers: Sequence[Tower]) -> str:
    """What runs where, a line a tower."""
    lines = []
    for i, tower in enumerate(towers):
        assert tower.parts is not None
        encoder, decoder, projection = tower.parts
        lines.append(
            f"tower {i}: encoder on {encoder}, decoder and attention on {decoder}, embedding, projection and loss on "
            f"{projection}"
        )
    return "\n".join(lines)
