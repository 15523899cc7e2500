"""Variables on one device: every tower reads them from there and sends its gradients there.

This needs the least memory and starts fastest: no copies, one trace of the update. It is the best choice on CPUs, on
one GPU, and between GPUs that exchange data only through host memory.
"""

from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.variable_update.replica import Replica
from chatbot.training.variable_update.synchronous import Synchronous


def parameter_server(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step whose towers share the model's own weights, or a copy on the CPU (--local-parameter-device cpu).

    With --model-parallel each weight is on the device where the first tower uses it.
    Raises UserError for --local-parameter-device gpu without a GPU.
    """
    if settings.parallel.local_parameter_device == "gpu" and "GPU" not in towers[0].device:
        raise UserError(
            "--local-parameter-device gpu: the towers run on the CPU; leave it out, or name GPUs with --gpus"
        )
    copies = settings.parallel.local_parameter_device == "cpu"
    place: str | list[str] = "/CPU:0" if copies else towers[0].device
    parts = towers[0].parts
    if parts is not None:
        device = {id(variable): parts.encoder for variable in model.encoder.trainable_variables}
        device |= {id(variable): parts.decoder for variable in model.decoder.trainable_variables}
        place, copies = [device.get(id(variable), parts.projection) for variable in model.trainable_variables], True
    replica = Replica(model, settings.learning, place, copies)
    return Synchronous(
        model,
        [(replica, towers)],
        settings.learning.seed,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )
