"""A pretrained model with fewer tokens: those of a corpus, and those that spell all other texts."""

import dataclasses
import json
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np

from chatbot.config.corpus import PIECES, PruneSettings
from chatbot.corpus.cache import temporary_folder
from chatbot.corpus.dataset import count_tokens, kept_pairs, print_reports
from chatbot.corpus.files import tokenise, training_files, validation_files, without_word_spaces
from chatbot.corpus.pieces import REMEDY, TOKENIZER, open_tokenizer
from chatbot.corpus.selection import Selection
from chatbot.corpus.workers import worker_pool
from chatbot.display import counted
from chatbot.durable import write_json
from chatbot.errors import UserError
from chatbot.pretrained.families import COPIES, UNREAD
from chatbot.pretrained.folder import CONFIG, PretrainedModel, pretrained_model, write_tensors
from chatbot.pretrained.tokens import piece_vocabulary, write_tokenizer_config

# Of config.json: the type of the tensors, and ids for generation that are no plain `*_token_id`.
LEFT_OUT = ("torch_dtype", "force", "bad_words", "suppress", "begin_suppress", "sequence_bias", "task_")


def prune(settings: PruneSettings) -> None:
    """Write a pretrained model with the tokens of the pairs to a new folder. Raises UserError, with nothing written."""
    model = pretrained_model(settings.init_from)
    output = Path(settings.output)
    if model is None:
        remedy = "give its folder, or its name such as google/mt5-small"
        raise UserError(f"--init-from {settings.init_from}: no pretrained model; {remedy}")
    if os.path.lexists(output) or not output.parent.is_dir():
        raise UserError(f"--output {output}: give a folder that does not exist yet, in one that does")
    corpus = dataclasses.replace(settings.corpus, tokenizer=PIECES, dictionary=str(model.tokenizer()))
    corpus = without_word_spaces(corpus)
    used = set[str]()
    with worker_pool() as pool:
        for files in filter(None, (training_files(corpus), validation_files(corpus))):
            tokenised = tokenise(files, pool)
            kept = kept_pairs(tokenised, tokenised.hashes(), Selection.of(files.settings))
            used |= count_tokens(tokenised, kept, pool).keys()
            print_reports(tokenised.reports)
    with temporary_folder(output.parent, ".pruned-") as part:
        tokens, weights = write_pruned(model, used, part)
        part.chmod(0o755)
        part.rename(output)
    print(f"{output}: {counted(tokens, 'token')} of {model.config['vocab_size']:,}; {counted(weights, 'weight')}")


def write_pruned(model: PretrainedModel, used: Collection[str], folder: Path) -> tuple[int, int]:
    """Write a pretrained model with fewer tokens into a folder. Return the numbers of its tokens and of its weights.

    used: pieces that stay, beside the special ones and those that spell others. A text of used pieces has the same ones
    afterwards. Raises UserError for a model that cannot be read, or a tokenizer that cannot be pruned, OSError.
    """
    path = model.tokenizer()
    vocabulary, _ = piece_vocabulary(path, model.config)
    made = open_tokenizer(path)
    ids = made.get_vocab()
    content = json.loads(made.to_str())
    unigram = content["model"]
    around = content["post_processor"]
    if (unigram["type"], around["type"]) != ("Unigram", "TemplateProcessing"):
        raise UserError(f"{path}: tokens of {unigram['type']} cannot be pruned, as T5's can; train with all of them")
    config = {name: x for name, x in model.config.items() if not name.startswith(LEFT_OUT)}
    special = {name: x for name, x in config.items() if name.endswith("_token_id") and x in range(config["vocab_size"])}
    kept = {*special.values(), unigram["unk_id"], *(token["id"] for token in content["added_tokens"])} - {None}
    kept |= {i for token in around["special_tokens"].values() for i in token["ids"]}
    # What its characters do not spell stays, also a byte, such as <0x41>.
    kept |= {i for x, i in ids.items() if x in used or len(x) < 2 or not {*x} <= ids.keys() or x.startswith("<0x")}
    rows = np.array(sorted(kept))
    new = {int(row): i for i, row in enumerate(rows)}
    unigram["vocab"] = [scored for i, scored in enumerate(unigram["vocab"]) if i in kept]
    unigram["unk_id"] = new.get(unigram["unk_id"])
    for token in content["added_tokens"]:
        token["id"] = new[token["id"]]
    for token in around["special_tokens"].values():
        token["ids"] = [new[i] for i in token["ids"]]
    (folder / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    write_tokenizer_config(folder, vocabulary)
    of_rows = {**{name: new[x] for name, x in special.items()}, "vocab_size": len(rows), "dtype": "float32"}
    write_json(folder / CONFIG, {**config, **of_rows})
    names = model.family.names
    tensors = {}
    for name in dict.fromkeys([names.embedding, *model.tensors]):
        if name.endswith(UNREAD):
            continue
        tensors[name] = model.tensor(name)
        if name in (names.embedding, names.output_bias) or name.endswith(COPIES):
            axis = -1 if name == names.output_bias else 0
            if tensors[name].ndim != 2 or tensors[name].shape[axis] <= rows[-1]:
                raise UserError(f"{model.folder}: {name} is {[*tensors[name].shape]}, not of the tokens; {REMEDY}")
            tensors[name] = np.take(tensors[name], rows, axis)
    write_tensors(folder, tensors)
    return len(rows), sum(value.size for value in tensors.values())
