"""The command, and what it refuses: one line and exit code 2. An export is complete or absent."""

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import chatbot
from chatbot.attempts.files import CONFIG, DATA, DICTIONARY, RETRIEVAL, VOCABULARY
from chatbot.chat.loading import load_model
from chatbot.commands import main
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import EXPORT, ExportSettings
from chatbot.corpus.vocabulary import load_vocabulary
from chatbot.errors import UserError
from chatbot.export.exported import load_export
from chatbot.export.manifest import MANIFEST, open_export, read_manifest, write_zip
from chatbot.export.write import export
from chatbot.retrieval.index import MEANING
from chatbot.retrieval.indexing import index_by_meaning
from tests.export.test_replies import run_python
from tests.export.untrained import write_attempt
from tests.retrieval.test_vectors import use_groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an attempt in checkpoints/ and an export of it."""
    folder = tmp_path_factory.mktemp("command")
    directory = write_attempt(folder / "checkpoints" / "tiny", attention="none", validated=False)
    (directory / DATA).write_text(json.dumps({"questions": ["晚安"]}))
    export(ExportSettings("tiny", "onnx"), directory, folder / "exports" / "tiny-onnx")
    return folder


@pytest.fixture
def _converted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are copied from the export that is there, since a conversion takes seconds."""

    def copied(output: Path, *_: object) -> None:
        for name in ("encode.onnx", "step.onnx", "weights.bin"):
            shutil.copy(folder / "exports" / "tiny-onnx" / name, output)

    monkeypatch.setattr("chatbot.export.onnx_format.write_onnx", copied)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the export."""
    return Path(shutil.copytree(folder / "exports" / "tiny-onnx", tmp_path / "copy"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, given by its words, and returns what it prints, or the one line by which it is refused."""

    def run(*words: str, is_refused: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", list(words))
        try:
            code = main("chat" if words[0] == "chat.py" else "export")
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        assert code == 2 * is_refused
        if is_refused:
            assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        return printed.err if is_refused else printed.out

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export tiny --format onnx", "exports/tiny-onnx: already exists; choose another name, or add --overwrite"),
        ("export tiny --output pairs.tsv --overwrite", "--overwrite: pairs.tsv is not an export; choose another name"),
        (
            "export tiny --output checkpoints --overwrite",
            "--overwrite: checkpoints is not an export; choose another name",
        ),
        ("export other --format onnx", "ATTEMPT other: no such attempt"),
        ("export tiny --format onnx --output new --data none.tsv", "none.tsv"),
        ("export tiny --format savedmodel --output new --top-p 1 --rerank 1", "--rerank: needs several replies"),
        (
            "export tiny --format savedmodel --output new --candidates 2 --top-k 1000",
            "--top-k 1000: the vocabulary has",
        ),
        ("chat.py pairs.zip", "pairs.zip: not an export; give a file written by `python -m chatbot.export --zip`"),
        ("chat.py --export nothing", "nothing: no such folder"),
        ("chat.py --export checkpoints/tiny", "not an export, because it has no export.json"),
        ("chat.py --export exports/tiny-onnx --history 1", "reads one question at a time; leave --history out"),
        ("chat.py --export exports/tiny-onnx --top-k 1000", "--top-k 1000: the vocabulary has"),
    ],
)
def test_unusable_input_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str], words: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    for name in ("pairs.tsv", "pairs.zip"):
        Path(name).write_text("a\tb\n")
    assert message in command(*words.split(), is_refused=True)
    assert not list(folder.rglob("*.part"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("package", "words", "remedy"),
    [
        ("tf2onnx", "export tiny --format onnx --output new", "pip install tf2onnx onnx onnxruntime"),
        ("onnxruntime", "chat.py --export exports/tiny-onnx", "pip install onnxruntime"),
    ],
)
def test_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str], package: str, words: str, remedy: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, package, None)
    assert f"run `{remedy}`" in command(*words.split(), is_refused=True)


@pytest.mark.parametrize("name", ["weights.bin", "step.onnx", "vocabulary.txt", "config.json", MANIFEST])
def test_damaged_export_is_refused(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + b"\xff" + content[middle + 1 :], None):
        (copy / name).unlink()
        if damaged is not None:
            (copy / name).write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged|not an export"):
            load_export(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"chatbot_export": 2},
        {"format": "pickle"},
        {"step": "1"},
        {"files": [1]},
        {"files": {"a": 1}},
        {"more": 1},
        {"attempt": "\x1b[2J"},
        {"questions": ["\x1b[2J"]},
        {"questions": [1]},
    ],
)
def test_manifest_of_another_version_is_refused(copy: Path, changes: dict[str, object]) -> None:
    values = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**values, **changes}))
    with pytest.raises(UserError, match=r"damaged|an export of version 2, expected 1"):
        load_export(copy)


def test_graph_that_is_no_graph_is_refused(copy: Path) -> None:
    """Also when the checksums were made for it. An export of an earlier version has no questions."""
    values = json.loads((copy / MANIFEST).read_text())
    assert load_model(copy).card.questions == ("晚安",)
    del values["questions"]
    (copy / MANIFEST).write_text(json.dumps(values))
    assert load_model(copy).card.questions == ()
    (copy / "step.onnx").write_bytes(b"")
    values["files"]["step.onnx"] = [0, 0]
    (copy / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(UserError, match="cannot be read"):
        load_export(copy)


@pytest.mark.usefixtures("_converted")
def test_dictionary_of_the_attempt_is_exported(folder: Path, tmp_path: Path) -> None:
    attempt = Path(shutil.copytree(folder / "checkpoints" / "tiny", tmp_path / "tiny"))
    settings = json.loads((attempt / CONFIG).read_text())
    (attempt / CONFIG).write_text(json.dumps({**settings, "tokenizer": "jieba", "dictionary": "elsewhere.txt"}))
    (attempt / DICTIONARY).write_text("吃了吗 9\n")
    export(ExportSettings("tiny", "onnx"), attempt, tmp_path / "onnx")
    found = load_export(tmp_path / "onnx").settings.corpus
    assert found.dictionary == str(tmp_path / "onnx" / DICTIONARY)
    assert Path(found.dictionary).read_text() == "吃了吗 9\n"


@pytest.mark.usefixtures("_converted")
def test_export_keeps_the_vectors_of_the_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished vectors are left out."""
    use_groups(monkeypatch)
    attempt = write_attempt(tmp_path / "checkpoints" / "tiny", attention="none", retrieves=True)
    vocabulary = load_vocabulary(attempt / VOCABULARY)
    index_by_meaning(attempt / RETRIEVAL, vocabulary, "e5")
    (attempt / RETRIEVAL / f"{MEANING}.part").mkdir()
    export(ExportSettings("tiny", "onnx", zip="a.zip"), attempt, tmp_path / "a.zip")
    exported = load_export(open_export(tmp_path / "a.zip")).retrieval
    assert exported is not None
    assert exported.meaning is not None
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        assert not [name for name in file.namelist() if ".part" in name]


@pytest.mark.usefixtures("_converted")
def test_half_written_export_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other folder is touched."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chatbot.export.write.write_manifest", full)
    output = folder / "full"
    (folder / "full.part").mkdir()
    with pytest.raises(OSError, match="No space"):
        export(ExportSettings("tiny", "onnx"), folder / "checkpoints" / "tiny", output)
    assert not output.exists()
    assert list(folder.rglob("*.part")) == [folder / "full.part"]
    (folder / "full.part").rmdir()


def test_default_search_is_that_of_the_attempt_whose_paths_are_left_out(folder: Path) -> None:
    onnx = folder / "exports" / "tiny-onnx"
    assert load_model(onnx).responder.decoding.beam_size == 5  # no validation chose the checkpoint
    assert load_model(onnx, DecodingSettings(top_p=0.5)).responder.decoding.top_p == 0.5
    values = json.loads((folder / "exports" / "tiny-onnx" / "config.json").read_text())
    assert not {"data", "validation", "word_vectors"} & values.keys()
    settings = EXPORT.parse(["weibo", "--format", "onnx", "--weights", "int8"])
    assert settings.path_of("weibo") == Path("exports", "weibo-onnx-int8")


@pytest.mark.usefixtures("_converted")
def test_zip_is_one_file_that_replies_like_its_folder(
    folder: Path, work_dir: Path, command: Callable[..., str]
) -> None:
    shutil.copytree(folder / "checkpoints", "checkpoints")
    size, checksum, _ = command("export", "--attempt", "tiny", "--zip", "a.zip").splitlines()
    assert size == f"a.zip: onnx, weights in float32, {Path('a.zip').stat().st_size / 1e6:.1f} MB"
    assert checksum == f"SHA-256 {hashlib.sha256(Path('a.zip').read_bytes()).hexdigest()}"
    assert sorted(path.name for path in work_dir.iterdir()) == ["a.zip", "checkpoints"]
    place = str(folder / "exports" / "tiny-onnx")
    bots = [chatbot.load(place, beam_size=2, n_best=1) for place in ("a.zip", place)]
    assert (bots[0].reply("你好"), bots[0].step) == (bots[1].reply("你好"), bots[1].step)
    for words in (["a.zip", "你好"], ["你好", "--export", "a.zip"]):
        assert command("chat.py", *words, "--beam-size", "2") == f"{bots[1].reply('你好')}\n"
    printed = command("chat.py", "你好", "吗", "--json", "--export", "a.zip", "--beam-size", "2")
    ((reply, score),) = bots[1].n_best("你好 吗")
    assert json.loads(printed) == {"reply": reply, "score": pytest.approx(score), "looked_up": None}


@pytest.mark.usefixtures("_converted")
def test_overwrite_replaces_an_export_alone(folder: Path, work_dir: Path, command: Callable[..., str]) -> None:
    shutil.copytree(folder / "checkpoints", "checkpoints")
    write_zip(Path(shutil.copytree(folder / "exports" / "tiny-onnx", "new")), Path("new.zip"))
    Path("new", "of_before").touch()
    for flags in (["--output", "new"], ["--zip", "new.zip"]):
        command("export", "tiny", *flags, "--overwrite", "--weights", "int8")
        assert read_manifest(open_export(Path(flags[1]))).weights == "int8"
    assert not Path("new", "of_before").exists()
    assert sorted(path.name for path in work_dir.iterdir()) == ["checkpoints", "new", "new.zip"]


BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras', 'numpy']))"


def test_help_needs_no_tensorflow_and_an_unpacked_zip_is_removed_when_the_process_ends(
    folder: Path, tmp_path: Path
) -> None:
    write_zip(folder / "exports" / "tiny-onnx", tmp_path / "a.zip")
    program = (
        f"{BLOCKED}; from pathlib import Path; from chatbot.export.manifest import open_export; "
        f"folder = open_export(Path({str(tmp_path / 'a.zip')!r})); "
        "print(folder.name, len([*folder.iterdir()]), folder); "
        "sys.argv = ['export', '--help']; from chatbot.commands import main; main('export')"
    )
    first, _, help_text = run_python(program, stdin="").partition("\n")
    name, files, place = first.split()
    assert (name, int(files)) == ("a", len([*(folder / "exports" / "tiny-onnx").iterdir()]))
    assert not Path(place).parent.exists()
    assert "--weights" in help_text


def test_damaged_zip_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that does not fit on the disk."""
    whole = tmp_path / "a.zip"
    write_zip(folder / "exports" / "tiny-onnx", whole)
    content = bytearray(whole.read_bytes())
    content[zipfile.ZipFile(whole).getinfo("weights.bin").header_offset + 200] ^= 0xFF
    (tmp_path / "b.zip").write_bytes(content)
    (tmp_path / "c.zip").write_bytes(whole.read_bytes()[:-100])
    assert load_model(whole).card.name == "tiny"
    for name in ("b.zip", "c.zip"):
        with pytest.raises(UserError, match=r"cannot be read|not an export|damaged"):
            load_model(tmp_path / name)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"GB unpacked, and .* has 0.0 GB free; free some space, or set TMPDIR"):
        open_export(whole)
