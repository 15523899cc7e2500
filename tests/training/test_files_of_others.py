"""The files of an attempt that is damaged, or was made to harm: each is read right, or refused in one line."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.attempts.checkpoint import read_group, read_pointer
from chatbot.attempts.opening import check_data, check_settings
from chatbot.attempts.settings import stored_settings
from chatbot.attempts.trained import load_trained, weights_of
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import BYTES, Vocabulary, load_vocabulary
from chatbot.decoding.ngrams import count_ngrams, load_ngrams
from chatbot.errors import UserError
from chatbot.training.checkpoints.progress import Provenance, read_progress
from chatbot.training.checkpoints.store import read_checkpoint
from chatbot.training.replica import TrainState
from chatbot.training.reporting.reporter import drop_after
from tests.training.untraced_update import train_untraced

DEFAULT = Path("checkpoints/default")


class Whole(NamedTuple):
    """An attempt of a step: its directory, beside pairs.tsv, and what its run had."""

    directory: Path
    settings: Settings
    data: dict[str, Any]
    shapes: list[tuple[int, ...]]
    state: TrainState


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        Path("pairs.tsv").write_text("你好\t你好呀\n")
        run, _ = train_untraced(rnn_size=4, embedding_size=4, steps=1)
        shutil.copy(DEFAULT / "last", DEFAULT / "best")
        shapes = [tuple(weight.shape) for weight in weights_of(run.model)]
        state = run.train_step.gather_state()
        return Whole(DEFAULT.absolute(), run.settings, run.data.description, shapes, state)


@pytest.fixture
def attempt(work_dir: Path, whole: Whole) -> Path:
    """A copy of that attempt, checkpoints/default."""
    shutil.copytree(whole.directory, DEFAULT)
    shutil.copy(whole.directory.parents[1] / "pairs.tsv", "pairs.tsv")
    return DEFAULT


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ckpt-1.safetensors", None, "checkpoint missing"),
        ("ckpt-1.safetensors", bytes(90_000), "checkpoint damaged"),
        ("ckpt-1.json", b"damaged", "checkpoint damaged"),
        ("last", b'{"checkpoint": "../x", "step": 1}', "last: damaged"),
        ("last", None, "last: missing, though"),
        ("best", b"{", "best: damaged"),
        ("data.json", b"{}", "data.json: missing or damaged"),
        ("config.json", None, "config.json: "),
        ("vocabulary.txt", None, "vocabulary.txt: "),
        ("vocabulary.txt", Vocabulary(["a", *BYTES]).content(), "vocabulary.txt: not the vocabulary that "),
    ],
)
def test_damaged_attempt_is_reported_and_not_overwritten(
    attempt: Path, name: str, content: bytes | None, message: str
) -> None:
    """When it is loaded, and when it is resumed. Only training reads data.json and best."""
    (attempt / name).unlink()
    if name == "last":
        (attempt / "best").unlink()  # which would be loaded
    if content is not None:
        (attempt / name).write_bytes(content)
    before = {path: path.read_bytes() for path in attempt.rglob("*") if path.is_file()}
    uses: list[Callable[[], object]] = [lambda: train_untraced(rnn_size=4, embedding_size=4, steps=2)]
    if name not in ("data.json", "best"):
        uses.append(lambda: load_trained(attempt))
    for use in uses:
        with pytest.raises(UserError) as error:
            use()
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in attempt.rglob("*") if path.is_file()} == before


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


@contextmanager
def reads_or_refuses() -> Iterator[None]:
    """The block may raise a UserError, whose message is one line, and nothing else."""
    messages = []
    try:
        yield
    except UserError as error:
        messages.append(str(error))
    assert not [message for message in messages if "\n" in message]


READERS: dict[str, Callable[[Path, Whole], object]] = {
    "last": lambda directory, _: read_progress(directory / "last"),
    "best": lambda directory, _: read_pointer(directory / "best"),
    "config.json": lambda directory, _: stored_settings(directory / "config.json"),
    "vocabulary.txt": lambda directory, _: load_vocabulary(directory / "vocabulary.txt"),
    "data.json": lambda _, whole: check_data(whole.settings, whole.data),
    "metrics.jsonl": lambda directory, _: drop_after(directory / "metrics.jsonl", 1),
    "ckpt-1.json": lambda directory, whole: read_checkpoint(
        directory / "ckpt-1", whole.shapes, whole.state, Provenance(whole.settings, whole.data)
    ),
    # Of a checkpoint whose manifest was made to fit.
    "ckpt-1.safetensors": lambda directory, whole: read_group(directory / "ckpt-1", "weights", whole.shapes),
}


@pytest.mark.parametrize("name", READERS)
def test_file_is_read_or_refused_in_one_line(attempt: Path, whole: Whole, name: str) -> None:
    content = (attempt / name).read_bytes()

    @settings(max_examples=40)
    @given(damaged(content))
    def check(changed: bytes) -> None:
        (attempt / name).write_bytes(changed)
        with reads_or_refuses():
            READERS[name](attempt, whole)

    READERS[name](attempt, whole)
    check()


@settings(max_examples=15)
@given(st.data())
def test_attempt_is_loaded_or_refused_in_one_line(whole: Whole, tmp_path_factory: Any, data: st.DataObject) -> None:
    """One file is damaged, the manifest included; the others are whole."""
    directory = tmp_path_factory.mktemp("damaged") / "default"
    shutil.copytree(whole.directory, directory)
    name = data.draw(st.sampled_from(["best", "config.json", "ckpt-1.json", "ckpt-1.safetensors"]))
    (directory / name).write_bytes(data.draw(damaged((directory / name).read_bytes())))
    with reads_or_refuses():
        assert load_trained(directory).step == 1


@pytest.mark.parametrize(
    "sizes",
    [{"rnn_size": 10**9}, {"num_layers": 10**9}, {"tied_embeddings": False, "embedding_size": 10**9}],
)
def test_model_larger_than_its_checkpoint_is_not_created(attempt: Path, sizes: dict[str, Any]) -> None:
    config = attempt / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **sizes}))
    for load in (lambda: load_trained(attempt), lambda: check_settings(stored_settings(config))):
        with pytest.raises(
            UserError, match=r"does not match the settings \(a model of at least [\d,.]+ MB, but 0.\d MB"
        ):
            load()


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
    arrays, file = dict(np.load(BytesIO(count_ngrams([Ragged.from_rows([[5, 6]])], 9, 2).content()))), BytesIO()
    np.savez(file, **{**arrays, "ids_2": np.array([print], dtype=object)}, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npz(unigrams=((10**12,), b"")), "unigrams.npy is not a numeric vector of the expected size"),
        (npz(unigrams=((5_000_000,), bytes(20_000_000))), "its compression ratio is implausible"),
        (pickled(), r"ids_2\.npy is not a numeric vector"),
    ],
    ids=["claims a trillion", "zip bomb", "objects"],
)
def test_malicious_ngrams_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "ngrams.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        load_ngrams(path, 9, 2)
