"""The tokens of a pretrained model as a vocabulary."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pieces import REMEDY, TEXTS, open_tokenizer
from chatbot.corpus.vocabulary import SPECIALS, UNK, PieceVocabulary
from chatbot.durable import write_json
from chatbot.errors import UserError


def piece_vocabulary(path: Path, config: Mapping[str, Any]) -> tuple[PieceVocabulary, npt.NDArray[np.int64]]:
    """Return the tokens of a pretrained model, and the id there of each, -1 for those that it does not have.

    path: of its tokenizer.json. config: its config.json, which says what begins and ends replies. Raises UserError for
    files that do not fit each other, and for tokenizers whose texts are not known.
    """
    made = open_tokenizer(path)
    size = _whole(config, "vocab_size", path)
    content = json.loads(made.to_str())
    kind = (content.get("decoder") or {}).get("type")
    if kind not in TEXTS:
        raise UserError(f"{path}: decoder {kind!r} is not known; known are {', '.join(TEXTS)}")
    ids = made.get_vocab()
    if ids and max(ids.values()) >= size:
        raise UserError(f"{path}: {max(ids.values()) + 1:,} tokens, and vocab_size {size:,} in config.json; {REMEDY}")
    names = {i: piece for piece, i in ids.items()}
    unused = [i for i in range(size) if i not in names]
    names |= {i: f"<unused {i}>" for i in unused}
    pad, end, start = (_whole(config, f"{x}_token_id", path) for x in ("pad", "eos", "decoder_start"))
    if not {pad, end, start} <= names.keys():
        raise UserError(f"{path}: no token of the ids {pad}, {end} and {start} in config.json; {REMEDY}")
    model = content["model"]
    unknown = model["unk_id"] if type(model.get("unk_id")) is int else ids.get(model.get("unk_token"), -1)
    *beginning, last = made.encode("").tokens or [""]
    if last != names[end]:
        raise UserError(f"{path}: texts do not end with {names[end]!r}, the end in config.json; choose another model")
    special = [names[pad], names[end], names.get(unknown, SPECIALS[UNK])]
    others = [i for i in range(size) if i not in (pad, end, unknown)]
    pieces = [names[i] for i in others]
    if any("\n" in piece for piece in pieces):
        raise UserError(f"{path}: a token with a line break is not supported; choose another model")
    added = made.get_added_tokens_decoder().items()
    silent = {*(names[i] for i, token in added if token.special), *(names[i] for i in unused), *beginning} & {*pieces}
    literal = {names[i] for i, _ in added} & {*pieces} - silent
    of_pieces = {"silent": sorted(silent), "literal": sorted(literal), "beginning": beginning}
    description = {"texts": kind, "special": special, **of_pieces, "config": dict(config)}
    rows = [pad, start, end, unknown, -1, *others]
    try:
        return PieceVocabulary(pieces, description), np.array(rows)
    except (LookupError, ValueError):
        raise UserError(f"{path}: a token is not as decoder {kind!r} writes it; {REMEDY}") from None


def write_tokenizer_config(folder: Path, vocabulary: PieceVocabulary) -> None:
    """Write what tells transformers not to make a tokenizer of the kind that is usual for the model_type."""
    pad, end, _ = vocabulary.description["special"]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", {**kind, "pad_token": pad, "eos_token": end})


def _whole(config: Mapping[str, Any], name: str, path: Path) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 <= value <= 10_000_000:
        raise UserError(f"{path.parent}: {name} {value!r} in config.json is no number of a token; {REMEDY}")
    return value
