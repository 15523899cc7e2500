"""The files of an attempt that is damaged, or was made to harm: each is read right, or refused in one line."""

import ast
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.config.stored import stored_settings
from chatbot.corpus import vocabulary as vocabulary_module
from chatbot.corpus.ngrams import load_ngrams, ngrams_of
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import BYTES, Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.model.checkpoint import read_group, read_pointer
from chatbot.model.saved import load_trained, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import check_data, check_settings, write_attempt
from chatbot.training.checkpoints.manifest import Progress, Provenance, read_progress
from chatbot.training.checkpoints.store import Checkpoints, read_checkpoint
from chatbot.training.replica import TrainState
from chatbot.training.reporting.reporter import drop_after
from tests.training.small_run import small_settings

SETTINGS = small_settings(rnn_size=4, embedding_size=4, both_directions="off")
VOCABULARY = Vocabulary(["你", "好", "你好", *BYTES])
DATA = {
    "pairs": 1,
    "fingerprint": "f",
    "vocabulary": VOCABULARY.fingerprint(),
    "both_directions": False,
    "version": 1,
}
STATE = TrainState([np.asarray(1, np.int64)])
DEFAULT = Path("checkpoints/default")


@pytest.fixture(scope="module")
def shapes() -> list[tuple[int, ...]]:
    """The shapes of the weights."""
    return [tuple(weight.shape) for weight in weights_of(Seq2Seq(SETTINGS.model, len(VOCABULARY)))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an attempt of one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        write_attempt(SETTINGS, VOCABULARY, DATA)
        model = Seq2Seq(SETTINGS.model, len(VOCABULARY))
        checkpoints = Checkpoints(DEFAULT, model, provenance=Provenance(SETTINGS, DATA))
        checkpoints.save(Progress(step=1, best_step=1, best_nats=3.0), STATE, best=True)
        checkpoints.finish()
        (DEFAULT / "metrics.jsonl").write_text('{"step": 1, "loss": 3.5}\n{"step": 2, "loss": 3.25}\n')
        return DEFAULT.absolute()


@pytest.fixture
def attempt(work_dir: Path, whole: Path) -> Path:
    """A copy of that attempt, checkpoints/default."""
    shutil.copytree(whole, DEFAULT)
    return DEFAULT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text() | st.just("\n\x1b[2J"),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Random bytes, random JSON, or the content with a part cut off, bits flipped or a value of its JSON replaced."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.binary(max_size=60) | st.just(b"[" * 100_000) | st.just(b'{"step":' * 50_000))
    if kind == 1:
        return json.dumps(draw(JSON)).encode()
    if kind == 2:
        return content[: draw(st.integers(0, len(content)))]
    if kind == 3 and content[:1] == b"{":
        value = json.loads(content.splitlines()[0] if b"}\n{" in content else content)
        place = value
        while isinstance(place[key := draw(st.sampled_from(sorted(place)))], dict) and draw(st.booleans()):
            place = place[key]
        place[key] = draw(JSON)
        return json.dumps(value).encode()
    changed = bytearray(content)
    for at in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        changed[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def read_weights(directory: Path, shapes: list[tuple[int, ...]]) -> None:
    """Read a checkpoint whose manifest was made to fit."""
    read_group(directory / "ckpt-1", "weights", shapes)


@contextmanager
def reads_or_refuses() -> Iterator[None]:
    """The block may raise a UserError, whose message is one line, and nothing else."""
    messages = []
    try:
        yield
    except UserError as error:
        messages.append(str(error))
    assert not [message for message in messages if "\n" in message]


READERS: dict[str, Callable[[Path, Any], object]] = {
    "last": lambda directory, _: read_progress(directory / "last"),
    "best": lambda directory, _: read_pointer(directory / "best"),
    "config.json": lambda directory, _: stored_settings(directory / "config.json"),
    "vocabulary.txt": lambda directory, _: load_vocabulary(directory / "vocabulary.txt"),
    "data.json": lambda directory, _: check_data(SETTINGS, DATA),
    "metrics.jsonl": lambda directory, _: drop_after(directory / "metrics.jsonl", 1),
    "ckpt-1.json": lambda directory, shapes: read_checkpoint(
        directory / "ckpt-1", shapes, STATE, Provenance(SETTINGS, DATA)
    ),
    "ckpt-1.safetensors": read_weights,
}


@pytest.mark.parametrize("name", READERS)
def test_file_is_read_or_refused_in_one_line(attempt: Path, shapes: Any, name: str) -> None:
    content = (attempt / name).read_bytes()

    @settings(max_examples=40)
    @given(damaged(content))
    def check(changed: bytes) -> None:
        (attempt / name).write_bytes(changed)
        with reads_or_refuses():
            READERS[name](attempt, shapes)

    READERS[name](attempt, shapes)
    check()


@settings(max_examples=15)
@given(st.data())
def test_attempt_is_loaded_or_refused_in_one_line(whole: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    """One file is damaged, the manifest included; the others are whole."""
    directory = tmp_path_factory.mktemp("damaged") / "default"
    shutil.copytree(whole, directory)
    name = data.draw(st.sampled_from(["best", "config.json", "ckpt-1.json", "ckpt-1.safetensors"]))
    (directory / name).write_bytes(data.draw(damaged((directory / name).read_bytes())))
    with reads_or_refuses():
        assert load_trained(directory).step == 1


@pytest.mark.parametrize(
    "sizes",
    [
        {"rnn_size": 10**9},
        {"embedding_size": 10**9},
        {"num_layers": 10**9},
        {"tied_embeddings": False, "embedding_size": 10**9},
    ],
)
def test_model_that_is_larger_than_its_checkpoint_is_not_made(attempt: Path, sizes: dict[str, Any]) -> None:
    config = attempt / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **sizes}))
    for load in (lambda: load_trained(attempt), lambda: check_settings(stored_settings(config))):
        with pytest.raises(UserError, match=r"not of these settings \(a model of at least [\d,.]+ MB, and 0.\d MB"):
            load()


def test_number_beyond_all_types_is_refused(attempt: Path) -> None:
    config = attempt / "config.json"
    whole = json.loads(config.read_text())
    for name in ("learning_rate", "seed", "keep"):
        config.write_text(json.dumps({**whole, name: 10**400}))
        message = f"config.json: --{name.replace('_', '-')}: must be at most 9223372036854775807"
        with pytest.raises(UserError, match=message):
            stored_settings(config)


def test_vocabulary_that_is_too_large_is_not_read(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_module, "MOST_BYTES", 100)
    path = attempt / "vocabulary.txt"
    path.write_text("".join(f"{i}\n" for i in range(99)))
    with pytest.raises(UserError, match=r"vocabulary damaged \(more than 100 bytes"):
        load_vocabulary(path)


def npz(**headers: tuple[Any, bytes]) -> bytes:
    """An .npz file of arrays with these shapes and contents, compressed."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (shape, content) in headers.items():
            header = BytesIO()
            descr = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(header, descr)
            archive.writestr(f"{name}.npy", header.getvalue() + content)
    return file.getvalue()


def pickled() -> bytes:
    """An .npz file of n-grams, some of which are objects."""
    arrays, file = dict(np.load(BytesIO(ngrams_of([Ragged.from_rows([[5, 6]])], 9, 2).content()))), BytesIO()
    np.savez(file, **{**arrays, "ids_2": np.array([print], dtype=object)}, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npz(unigrams=((10**12,), b"")), "unigrams.npy is not an array of numbers of the size of its file"),
        (npz(unigrams=((3, 3), bytes(36))), "unigrams.npy is not an array of numbers of the size of its file"),
        (npz(unigrams=((5_000_000,), bytes(20_000_000))), "it is compressed too much"),
        (pickled(), r"ids_2\.npy is not an array of numbers"),
    ],
    ids=["claims a trillion", "two dimensions", "zip bomb", "objects"],
)
def test_n_grams_that_harm_are_not_read(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "ngrams.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        load_ngrams(path, 9, 2)


def test_nothing_that_is_read_is_executed() -> None:
    """No module unpickles or evaluates, but for what workers of the same run have written into its temporary folder."""
    for path in (Path(__file__).parents[2] / "chatbot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                allowed = {"pickle"} if path.match("chatbot/corpus/beam.py") else set()
                assert not (names - allowed) & {"pickle", "marshal", "shelve", "dill", "joblib", "yaml.Loader"}, path
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load"}, path
                assert not any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords), path
