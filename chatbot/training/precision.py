"""The precision of matrix products: requested, stored in the attempt, or by what was measured on CPUs of this kind.

GPUs compute in float32 (TF32 from compute capability 8.0 on).
"""

from chatbot.attempts.files import CONFIG
from chatbot.attempts.opening import has_checkpoint
from chatbot.attempts.settings import stored_settings
from chatbot.config.corpus import AUTO
from chatbot.config.model import RECURRENT, TRANSFORMER
from chatbot.config.training import Settings
from chatbot.training.devices.towers import cpu_info

# A step is faster in bfloat16 on a CPU with these instructions, in layers of these units (docs/experiments.md). Smaller
# layers and other instructions were not measured, and a CPU without any for bfloat16 is slower with it.
MEASURED_INSTRUCTIONS = "avx512_bf16"
MEASURED_UNITS = {RECURRENT: 512, TRANSFORMER: 256}


def chosen_precision(settings: Settings, device: str) -> str:
    """Return the precision; print it if the CPU has a choice. device: the logical one of the first tower."""
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    if has_checkpoint(settings):
        before = stored_settings(settings.run.directory / CONFIG).learning.precision
        if before != AUTO:
            return before
    # The CPUs of the workers of an asynchronous run are not known here.
    if "GPU" in device or settings.parallel.asynchronous:
        return "float32"
    instructions = cpu_info("flags", "Features").split()
    least = MEASURED_UNITS[settings.model.architecture]
    if MEASURED_INSTRUCTIONS in instructions and settings.model.units >= least:
        print(f"Precision: bfloat16, which is faster on such a CPU from {least} units on (--precision to choose).")
        return "bfloat16"
    if any("bf16" in name for name in instructions):
        print("Precision: float32; bfloat16 was not measured at this size on such a CPU (--precision to choose).")
    return "float32"
