"""Settings of `duida export`."""

import dataclasses
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.commands import program
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import Flags, flags_for, setting

SAVEDMODEL = "savedmodel"
ONNX = "onnx"
TRANSFORMERS = "transformers"
FORMATS = (SAVEDMODEL, ONNX, TRANSFORMERS)
# Data types of exported weights. With int8, only matrices are quantised, and vectors remain float32.
FLOAT32 = "float32"
FLOAT16 = "float16"
INT8 = "int8"
WEIGHTS = (FLOAT32, FLOAT16, INT8)
EXPORTS = Path("exports")
# Environment variable that sets the number of threads per operation in TensorFlow and ONNX Runtime.
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"
ZIP = ".zip"  # suffix of an export that is a single file


@dataclasses.dataclass(frozen=True)
class ExportSettings(Flags):
    """Settings of `duida export`."""

    attempt: str = setting(..., "attempt to export: its name or folder", group="run", metavar="ATTEMPT")
    format: str = setting(
        ONNX,
        "export format: for TensorFlow Serving, ONNX Runtime, or Hugging Face transformers (pretrained models only)",
        choices=FORMATS,
    )
    weights: str = setting(FLOAT32, "data type of the weight matrices; biases remain float32", choices=WEIGHTS)
    output: str | None = setting(
        None,
        "new folder for the export",
        unset=f"{EXPORTS}/ATTEMPT-FORMAT, plus -WEIGHTS unless float32",
        metavar="FOLDER",
    )
    zip: str | None = setting(None, "write an ONNX export to this .zip file instead of a folder", metavar="FILE")
    overwrite: bool = setting(False, "replace an existing export")
    data: tuple[str, ...] = setting(
        (),
        "pairs for measuring the loss of the exported weights",
        unset="the attempt's validation pairs",
        group="data",
        metavar="FILE",
    )
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zip is not None and self.output is not None:
            raise UserError(f"--zip {self.zip} and --output {self.output} are mutually exclusive; use only one")
        if self.zip is not None and (self.format != ONNX or not self.zip.endswith(ZIP)):
            raise UserError(f"--zip {self.zip}: give a name that ends in {ZIP}, and --format onnx")
        if self.format == TRANSFORMERS and self.weights != FLOAT32:
            raise UserError(
                f"--weights {self.weights}: an export for transformers always has float32 weights; leave it out"
            )
        flags = flags_for(self.decoding)
        if flags and self.format == TRANSFORMERS:
            raise UserError(f"{flags}: not part of an export for transformers; leave them out")
        if flags and self.format != SAVEDMODEL:
            raise UserError(
                f"{flags}: an export for {self.format} accepts these flags when it is used, in "
                f"{program('chat')} --export; leave them out"
            )

    def path_of(self, attempt: str) -> Path:
        """Return the path of the exported folder or file for an attempt with this name."""
        if self.zip is not None or self.output is not None:
            return Path(self.zip or self.output or "")
        return EXPORTS / "-".join([attempt, self.format, *([] if self.weights == FLOAT32 else [self.weights])])


EXPORT = CommandLine(
    ExportSettings,
    "export",
    about="Only a SavedModel includes decoding, so only this format accepts the flags for search, tokens and ranking.",
    example="weibo --zip weibo.zip",
    common="attempt zip format weights output overwrite data",
    positional="attempt",
    without="stop retrieve n_best min_score fallback rules seed",  # a SavedModel does not support these settings
)
