"""Starts an export. Invalid settings are rejected early, because importing TensorFlow takes seconds."""

import importlib.util

from chatbot.attempts.files import trained_directory
from chatbot.attempts.settings import with_default_search
from chatbot.config.export import ONNX, ExportSettings
from chatbot.errors import UserError
from chatbot.export.manifest import is_export


def start(settings: ExportSettings) -> None:
    """Export an attempt. Raises UserError if the settings are invalid or the export fails."""
    directory = trained_directory(settings.attempt, "ATTEMPT")
    path = settings.path_of(directory.name)
    if path.exists() and not settings.overwrite:
        raise UserError(f"{path}: already exists; choose another name, or add --overwrite")
    if path.exists() and not is_export(path):
        raise UserError(f"--overwrite: {path} is not an export; choose another name, or remove the path yourself")
    with_default_search(settings.decoding, directory)
    for name in ("tf2onnx", "onnx") if settings.format == ONNX else ():
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format onnx: {name} is not installed; run `pip install tf2onnx onnx onnxruntime`")
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # An export must not contain cuDNN operations.
    from chatbot.export.write import export

    export(settings, directory, path)
