"""The settings of python -m chatbot.export."""

import dataclasses
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.commands import program
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import Flags, flags_for, setting

RUN = "run"
DATA = "data"

SAVEDMODEL = "savedmodel"
ONNX = "onnx"
TRANSFORMERS = "transformers"
FORMATS = (SAVEDMODEL, ONNX, TRANSFORMERS)
# The types in which weights are stored. int8: of each matrix; vectors stay float32.
FLOAT32 = "float32"
FLOAT16 = "float16"
INT8 = "int8"
WEIGHTS = (FLOAT32, FLOAT16, INT8)
EXPORTS = Path("exports")
# The number of threads that compute an operation, of TensorFlow and of ONNX Runtime.
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"
ZIP = ".zip"  # the end of the name of an export that is one file


@dataclasses.dataclass(frozen=True)
class ExportSettings(Flags):
    """The settings of python -m chatbot.export."""

    attempt: str = setting(
        ..., "the training run to export: its name, or the path of its folder", group=RUN, metavar="ATTEMPT"
    )
    format: str = setting(
        ONNX,
        "onnx: for ONNX Runtime, chat and serve, without TensorFlow; savedmodel: for TensorFlow Serving; transformers: "
        "for that library and others that read its folders, of an attempt that began with a pretrained model",
        choices=FORMATS,
    )
    weights: str = setting(FLOAT32, "type in which the matrices are stored; biases stay float32", choices=WEIGHTS)
    output: str | None = setting(
        None,
        "folder to write, which must not exist yet",
        unset=f"{EXPORTS}/ATTEMPT-FORMAT, with -WEIGHTS for smaller ones",
        metavar="FOLDER",
    )
    zip: str | None = setting(
        None, "instead of --output: one file with all of an export for onnx, such as weibo.zip", metavar="FILE"
    )
    overwrite: bool = setting(False, "replace the export that is there")
    data: tuple[str, ...] = setting(
        (), "pairs that measure the exported weights", unset="the attempt's validation", group=DATA, metavar="FILE"
    )
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zip is not None and self.output is not None:
            raise UserError(f"--zip {self.zip} and --output {self.output}: give one of the two")
        if self.zip is not None and (self.format != ONNX or not self.zip.endswith(ZIP)):
            raise UserError(f"--zip {self.zip}: give a name that ends in {ZIP}, and --format onnx")
        if self.format == TRANSFORMERS and self.weights != FLOAT32:
            raise UserError(f"--weights {self.weights}: an export for transformers has float32; leave it out")
        flags = flags_for(self.decoding)
        if flags and self.format == TRANSFORMERS:
            raise UserError(f"{flags}: not part of an export for transformers; leave them out")
        if flags and self.format != SAVEDMODEL:
            raise UserError(
                f"{flags}: an export for {self.format} takes these flags when it is used, by "
                f"{program('chat')} --export; leave them out"
            )

    def path_of(self, attempt: str) -> Path:
        """Return the folder or the file to write. attempt: the name of the attempt's folder."""
        if self.zip is not None or self.output is not None:
            return Path(self.zip or self.output or "")
        return EXPORTS / "-".join([attempt, self.format, *([] if self.weights == FLOAT32 else [self.weights])])


EXPORT = CommandLine(
    ExportSettings,
    "export",
    "A SavedModel contains its search: the flags of search, tokens and ranking are for this format only.",
    "weibo --zip weibo.zip",
    "attempt zip format weights output overwrite data",
    positional="attempt",
    without="stop retrieve n_best min_score fallback rules seed",  # no signature of a SavedModel has them
)
