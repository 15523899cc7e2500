"""Pretrained models with the tokens of a corpus: what stays is as it was, and other texts can be written."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, processors

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.corpus.pieces import open_tokenizer
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.model.seq2seq import Seq2Seq
from chatbot.pretrained.folder import CONFIG, TOKENIZER, WEIGHTS, PretrainedModel
from chatbot.pretrained.pruning import write_pruned
from chatbot.pretrained.tokens import piece_vocabulary
from chatbot.pretrained.weights import read_weights
from tests.pretrained.test_tokens import MORE, TEXTS
from tests.pretrained.tokenizer_files import MODELS, model_in, save, tokenizer_of

OF_TOKENS = {"model.shared.weight": 0, "model.encoder.embed_tokens.weight": 0, "lm_head.weight": 0}


def model_of(folder: Path) -> PretrainedModel:
    """Write a model where each row of a token contains its id, with one other tensor."""
    made, config = tokenizer_of("Metaspace", [*TEXTS, *MORE[:2]], 1500)
    save(made, folder)
    size = config["vocab_size"]
    config |= {"model_type": "bart", "bos_token_id": None, "torch_dtype": "float16"}
    tensors = {name: np.arange(size, dtype=np.float32)[:, None].repeat(2, 1) for name in OF_TOKENS}
    tensors |= {"final_logits_bias": np.arange(size, dtype=np.float32)[None], "model.other.weight": np.ones((size, 3))}
    tensors["model.encoder.version"] = np.array([3])
    write_json(folder / CONFIG, config)
    save_file(tensors, folder / WEIGHTS)
    return PretrainedModel(folder, config)


def save_unigram(folder: Path, pieces: list[str], special: list[str], template: str, unknown: int) -> Tokenizer:
    """Write a Unigram tokenizer like T5's that uses "ab" only if it has no other pieces."""
    made = Tokenizer(models.Unigram([(piece, -9.0 if piece == "ab" else -1.0) for piece in pieces], unknown))
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(special)
    around = [(piece, pieces.index(piece)) for piece in template.split() if piece in pieces]
    made.post_processor = processors.TemplateProcessing(template, None, around)
    save(made, folder)
    return made


def test_kept_texts_are_tokenised_as_before_and_others_are_spelled(tmp_path: Path) -> None:
    model, pruned = model_of(tmp_path / "whole"), tmp_path / "pruned"
    pruned.mkdir()
    before = open_tokenizer(model.tokenizer())
    some = TEXTS[: len(TEXTS) // 4]
    numbers = write_pruned(model, {piece for text in some for piece in before.encode(text).tokens} | {"never"}, pruned)
    after, config = Tokenizer.from_file(str(pruned / TOKENIZER)), read_json(pruned / CONFIG)
    assert [after.encode(text).tokens for text in some] == [before.encode(text).tokens for text in some]
    unknown = {"[UNK]", "<unk>"}
    for text in [*TEXTS, *MORE]:
        found, there = after.encode(text), before.encode(text)
        assert after.decode(found.ids) == before.decode(there.ids)
        assert unknown.isdisjoint(found.tokens) or not unknown.isdisjoint(there.tokens), text
    assert any(after.encode(text).tokens != before.encode(text).tokens for text in TEXTS)

    ids, old = after.get_vocab(), before.get_vocab()
    size = config["vocab_size"]
    assert sorted(ids.values()) == [*range(size)]
    assert size < 0.97 * model.config["vocab_size"]
    tensors = load_file(pruned / WEIGHTS)
    with safe_open(pruned / WEIGHTS, "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # without which transformers do not read them
    rows = [old[piece] for piece in sorted(ids, key=ids.__getitem__)]
    for name in OF_TOKENS:
        assert tensors[name].tolist() == [[row, row] for row in rows], name
    assert tensors["final_logits_bias"].tolist() == [rows]
    assert tensors["model.other.weight"].shape == (model.config["vocab_size"], 3)
    assert set(tensors) == {*OF_TOKENS, "final_logits_bias", "model.other.weight"}
    assert numbers == (size, sum(value.size for value in tensors.values()))
    assert read_json(pruned / "tokenizer_config.json")["pad_token"] == before.id_to_token(model.config["pad_token_id"])
    for name in ("pad", "eos", "decoder_start"):
        assert rows[config[f"{name}_token_id"]] == model.config[f"{name}_token_id"]
    assert (config["bos_token_id"], config["dtype"], "torch_dtype" in config) == (None, "float32", False)


def test_pieces_without_a_spelling_are_kept(tmp_path: Path) -> None:
    """Bytes and special tokens of the tokenizer or of config.json are kept, too. All get new ids."""
    words = ["<pad>", "ab", "</s>", "<unk>", "a", "b", "ac", "<0x41>", *"<0x41>", "ba", "äb", "bc", "ä", "aa", "bb"]
    save_unigram(tmp_path, words, ["<pad>", "</s>", "aa"], "ba $A </s>", words.index("<unk>"))
    config = {"model_type": "bart", "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "vocab_size": 25}
    config |= {"mask_token_id": 24, "sep_token_id": 99}  # which is no token, and which is none at all
    config |= {"forced_eos_token_id": [2], "bad_words_ids": [[10]], "suppress_tokens": [10], "task_specific_params": {}}
    config |= {"begin_suppress_tokens": [10], "sequence_bias": [], "force_words_ids": []}
    save_file({"model.shared.weight": np.ones((25, 2), np.float32)}, tmp_path / WEIGHTS)
    (tmp_path / "pruned").mkdir()
    write_pruned(PretrainedModel(tmp_path, config), set(), tmp_path / "pruned")
    after = read_json(tmp_path / "pruned" / TOKENIZER)
    kept = [piece for piece in words if piece not in ("ab", "äb", "bb")]
    assert [piece for piece, _ in after["model"]["vocab"]] == kept
    new = {piece: i for i, piece in enumerate(kept)}
    assert after["model"]["unk_id"] == new["<unk>"]
    assert {token["content"]: token["id"] for token in after["added_tokens"]}.items() <= new.items()
    of_texts = after["post_processor"]["special_tokens"].items()
    assert {piece: token["ids"] for piece, token in of_texts} == {x: [new[x]] for x in ("</s>", "ba")}
    changed = read_json(tmp_path / "pruned" / CONFIG)
    assert (changed["eos_token_id"], changed["mask_token_id"]) == (new["</s>"], len(kept))
    assert (changed["sep_token_id"], changed["vocab_size"]) == (99, len(kept) + 1)
    expected = "model_type vocab_size pad_token_id eos_token_id decoder_start_token_id mask_token_id sep_token_id dtype"
    assert {*changed} == {*expected.split()}


def test_unknown_token_is_kept(tmp_path: Path) -> None:
    """Even if the tokenizer refers to it by id alone and other pieces spell its name."""
    pieces = ["<pad>", "</s>", "<unk>", *"<unk>", "nu", "ku"]
    made = save_unigram(tmp_path, pieces, ["<pad>", "</s>"], "$A </s>", 2)
    size, special = made.get_vocab_size(), {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    save_file({"shared.weight": np.ones((size, 2), np.float32)}, tmp_path / WEIGHTS)
    (tmp_path / "pruned").mkdir()
    config = {"model_type": "t5", "vocab_size": size, **special}
    write_pruned(PretrainedModel(tmp_path, config), {"ku"}, tmp_path / "pruned")
    after = open_tokenizer(tmp_path / "pruned" / TOKENIZER)
    assert {*pieces} - {*after.get_vocab()} == {"nu"}
    assert after.encode("kux").ids == [after.token_to_id("ku"), after.token_to_id("<unk>"), 1]


def fitting_tokenizer(folder: Path) -> list[str]:
    """Write a tokenizer of the size of a small model. Return its tokens: Chinese characters and letters."""
    config = read_json(folder / CONFIG)
    names = {config["pad_token_id"]: "<pad>", config["eos_token_id"]: "</s>"}
    pieces = [names.get(i, chr(0x4E00 + i)) for i in range(config["vocab_size"])]
    unknown = next(i for i in range(4) if i not in names)
    pieces[unknown] = "<unk>"
    pieces[-5:] = ["a", "b", "ab", "ba", "aa"]
    save_unigram(folder, pieces, ["<pad>", "</s>"], "$A </s>", unknown)
    return pieces


@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_command_writes_a_pretrained_model(name: str, work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(MODELS / name, "there")
    pieces = fitting_tokenizer(Path("there"))
    Path("talk").mkdir()
    Path("talk/train.tsv").write_text("丆万\tbab\n" * 9, encoding="utf-8")
    Path("talk/valid.tsv").write_text("丆万\taab\n", encoding="utf-8")
    arguments = ["talk", "--columns", "1", "2", "--init-from", "there", "--cache", "cache"]
    output, there = Path("pruned"), {*Path().iterdir()}
    assert commands.run("data prune", [*arguments, "--output", str(output)]) == 0
    *report, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"pruned: 40 tokens of 41; [\d,]+ weights", line)
    assert "  left out: duplicate pairs: 8" in report
    assert {*pieces} - {piece for piece, _ in read_json(output / TOKENIZER)["model"]["vocab"]} == {"ab"}
    model = model_in(output)
    own, rows = piece_vocabulary(model.tokenizer(), model.config)
    read_weights(Seq2Seq(compose(Settings, **model.settings(), max_length=12).model, len(own)), model, rows)
    assert output.stat().st_mode & 0o777 == 0o755
    assert (output / WEIGHTS).stat().st_mode == (output / CONFIG).stat().st_mode
    assert {*Path().iterdir()} - there == {output, Path("cache")}


def test_unprunable_models_are_refused(tmp_path: Path) -> None:
    """Nothing is written."""
    folder = tmp_path / "whole"
    model, pruned = model_of(folder), tmp_path / "pruned"
    pruned.mkdir()

    def refused(message: str, changed: PretrainedModel = model) -> None:
        with pytest.raises(UserError, match=message) as error:
            write_pruned(changed, {"你"}, pruned)
        assert len(str(error.value)) < 200 + len(str(folder))
        assert not (pruned / WEIGHTS).exists()

    tensors = load_file(folder / WEIGHTS)
    for name in ("model.shared.weight", "final_logits_bias"):
        for damaged in (tensors[name][:5, :5], tensors[name].ravel()):
            save_file(tensors | {name: damaged}, folder / WEIGHTS)
            refused(f"{name} is .*, which does not fit the tokenizer", PretrainedModel(folder, model.config))
    save_file({"final_logits_bias": tensors["final_logits_bias"]}, folder / WEIGHTS)
    refused("no tensor model.shared.weight", PretrainedModel(folder, model.config))
    without = {name: x for name, x in model.config.items() if name != "vocab_size"}
    refused("vocab_size None in config.json", PretrainedModel(folder, without))
    made, config = tokenizer_of("WordPiece", TEXTS, 1500)
    save(made, folder)
    refused("WordPiece cannot be pruned", PretrainedModel(folder, {**model.config, **config}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--init-from", "pairs.tsv"],
            "--init-from pairs.tsv: not a pretrained model; give a folder or a Hugging Face model id",
        ),
        (["--output", "there"], "--output there: must be a new folder in an existing one; give another path"),
        (["--output", "link"], "--output link: must be a new folder"),
        (["--output", "none/new"], "--output none/new: must be a new folder"),
        (["--block-list", "words"], "pairs.tsv: 1 pair, none of them left"),
    ],
)
def test_bad_input(work_dir: Path, arguments: list[str], message: str) -> None:
    shutil.copytree(MODELS / "bart", "there")
    fitting_tokenizer(Path("there"))
    Path("pairs.tsv").write_text("丆万\t丈三\n", encoding="utf-8")
    Path("words").write_text("丈\n", encoding="utf-8")
    Path("link").symlink_to("nothing")
    given = ["pairs.tsv", "--columns", "1", "2", "--init-from", "there", "--output", "pruned", "--cache", "cache"]
    with pytest.raises(UserError, match=message):
        commands.run("data prune", [*given, *arguments])
    assert {path.name for path in Path().iterdir()} - {"cache"} == {"link", "pairs.tsv", "there", "words"}
