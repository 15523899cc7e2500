"""A published model with fewer tokens: those of a corpus, and those that spell all other texts.

Of the 300 million weights of mT5-small, 256 million are of its 250,000 tokens, for 101 languages.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from chatbot.config.families import COPIES, UNREAD
from chatbot.config.published import CONFIG, REMEDY, TOKENIZER, WEIGHTS, PublishedModel
from chatbot.corpus.pieces import CONTINUES, open_tokenizer
from chatbot.corpus.published import piece_vocabulary
from chatbot.durable import write_json
from chatbot.errors import UserError

BYTE = re.compile("<0x[0-9A-F]{2}>")
BPE, WORD_PIECE, UNIGRAM = "BPE", "WordPiece", "Unigram"


def write_pruned(model: PublishedModel, used: Collection[str], folder: Path) -> tuple[int, int]:
    """Write a published model with fewer tokens into a folder. Return the numbers of its tokens and of its weights.

    used: pieces that stay, beside the special ones and those that spell others. A text of used pieces has the same ones
    afterwards. Raises UserError for a model that cannot be read, or a tokenizer that cannot be pruned, OSError.
    """
    path, names = model.tokenizer(), model.family.names
    piece_vocabulary(path, model.config)  # they fit each other
    content = json.loads(open_tokenizer(path).to_str())
    if content["model"]["type"] not in (BPE, WORD_PIECE, UNIGRAM):
        raise UserError(
            f"{path}: tokens of a model {content['model']['type']} cannot be pruned; train with all of them"
        )
    ids, size = open_tokenizer(path).get_vocab(), model.config["vocab_size"]
    of_config = {name: x for name, x in model.config.items() if name.endswith("_token_id") and x in range(size)}
    pieces = _kept(ids, used, content, of_config.values())
    rows = np.array(sorted({*(ids[piece] for piece in pieces), *of_config.values()}))
    new = {int(row): i for i, row in enumerate(rows)}
    (folder / TOKENIZER).write_text(json.dumps(_pruned(content, pieces, new), ensure_ascii=False), encoding="utf-8")
    after = open_tokenizer(folder / TOKENIZER).get_vocab()
    if after != {piece: new[ids[piece]] for piece in pieces}:
        raise UserError(f"{path}: its tokens cannot be numbered without gaps; train with all of them")
    tensors = {}
    for name in (name for name in model.tensors if not name.endswith(UNREAD)):
        value, axis = model.tensor(name), -1 if name == names.output_bias else 0
        if name in (names.embedding, names.output_bias) or name.endswith(COPIES):
            if not value.ndim or value.shape[axis] <= rows[-1]:
                raise UserError(f"{model.folder}: {name} is {[*value.shape]}, not of the tokens; {REMEDY}")
            value = np.take(value, rows, axis)
        tensors[name] = value
    config = {name: x for name, x in model.config.items() if name != "torch_dtype"}
    config |= {name: new[x] for name, x in of_config.items()} | {"vocab_size": len(rows), "dtype": "float32"}
    write_json(folder / CONFIG, config)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return len(rows), sum(value.size for value in tensors.values())


def _kept(
    ids: Mapping[str, int], used: Collection[str], content: Mapping[str, Any], special: Iterable[int]
) -> set[str]:
    """Return the pieces that stay. content: of tokenizer.json. special: ids of config.json."""
    model, named = content["model"], {i: piece for piece, i in ids.items()}
    kept = {token["content"] for token in content["added_tokens"]} | {named[i] for i in special if i in named}
    unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else model.get("unk_token")
    kept |= {*used, unknown} & ids.keys()
    around = json.dumps(content["post_processor"], ensure_ascii=False)  # names what begins and ends texts
    for piece in ids:
        characters = _characters(piece, model["type"])
        is_spelled = characters != [piece] and {*characters} <= ids.keys()
        if not is_spelled or BYTE.fullmatch(piece) or f'"{piece}"' in around:
            kept.add(piece)
    parts = defaultdict[str, set[str]](set)  # of what BPE joins
    for first, second in model.get("merges", ()):
        parts[_joined(first, second, model)] |= {first, second}
    unseen = [*kept]
    while unseen:
        found = parts[unseen.pop()] - kept
        kept |= found
        unseen += found
    return kept


def _characters(piece: str, kind: str) -> list[str]:
    """Return what spells a piece. kind: of the tokenizer's model."""
    if kind != WORD_PIECE:
        return [*piece]
    is_first = not piece.startswith(CONTINUES)
    return [("" if is_first and i == 0 else CONTINUES) + x for i, x in enumerate(piece.removeprefix(CONTINUES))]


def _joined(first: str, second: str, model: Mapping[str, Any]) -> str:
    return first + second.removeprefix(model.get("continuing_subword_prefix") or "")


def _pruned(content: Mapping[str, Any], pieces: Collection[str], new: Mapping[int, int]) -> dict[str, Any]:
    """Return the content of tokenizer.json with these pieces only. new: the new id of each old one."""
    model = dict(content["model"])
    if model["type"] == UNIGRAM:
        model["vocab"] = [scored for scored in model["vocab"] if scored[0] in pieces]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {piece: new[i] for piece, i in model["vocab"].items() if piece in pieces}
    if model["type"] == BPE:
        model["merges"] = [m for m in model["merges"] if {*m, _joined(m[0], m[1], model)} <= {*pieces}]
    added = [token | {"id": new[token["id"]]} for token in content["added_tokens"]]
    after = _renumbered(content["post_processor"], new)
    return {**content, "model": model, "added_tokens": added, "post_processor": after}


def _renumbered(value: Any, new: Mapping[int, int]) -> Any:
    """Return what follows a tokenizer, with new ids: its numbers in lists, alone or beside the name of a token."""
    if isinstance(value, dict):
        return {name: _renumbered(x, new) for name, x in value.items()}
    if isinstance(value, list):
        return [new[x] if type(x) is int else _renumbered(x, new) for x in value]
    return value
