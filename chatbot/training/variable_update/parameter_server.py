"""Variables on one device; every tower reads them from there, and its gradients go back there.

The least memory and the quickest start: no copies, one trace of the update. Best on CPUs, on one GPU,
and where GPUs reach each other only through the host's memory.
"""

from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.variable_update.replica import Place, Replica
from chatbot.training.variable_update.synchronous import Synchronous


def parameter_server(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Towers that share the model's own weights, or weights on the CPU (--local-parameter-device cpu).

    With towers that are spread over several devices, each weight lives where the first of them uses it.
    Raises UserError when the GPU is asked for and there is none.
    """
    if settings.parallel.local_parameter_device == "gpu" and "GPU" not in towers[0].device:
        raise UserError(
            "--local-parameter-device gpu: the towers run on the CPU; leave it out, or name GPUs with --gpus"
        )
    place: Place = "/CPU:0" if settings.parallel.local_parameter_device == "cpu" else None
    parts = towers[0].parts
    if parts is not None:
        device = {id(variable): parts.encoder for variable in model.encoder.trainable_variables}
        device |= {id(variable): parts.decoder for variable in model.decoder.trainable_variables}
        place = [device.get(id(variable), parts.projection) for variable in model.trainable_variables]
    replica = Replica(model, settings.learning.optimizer, settings.learning.max_gradient_norm, place)
    return Synchronous(
        model,
        [(replica, towers)],
        settings.learning.seed,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )
