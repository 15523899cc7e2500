"""The house keeps its shape: imports go one way, rooms stay small."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "chatbot").rglob("*.py"))

# What each room may import of the others.
BASE = {"errors", "flags", "config", "memory", "quiet"}
MAY_IMPORT = {
    "errors": set(),
    "memory": set(),
    "quiet": set(),
    "flags": {"errors"},
    "config": {"errors", "flags"},
    "corpus": BASE,
    "model": BASE | {"corpus"},
    "decoding": set(),
    "evaluation": BASE | {"corpus", "model", "decoding"},
    "training": BASE | {"corpus", "model", "decoding", "evaluation"},
    "chat": BASE | {"corpus", "model", "decoding", "evaluation"},
}


def room(path: Path) -> str:
    """The folder, or the file at the top, that a module belongs to."""
    return path.relative_to(ROOT / "chatbot").parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    if room(path) == "__init__":
        return
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("chatbot.")}
    assert ours - {room(path)} <= MAY_IMPORT[room(path)]
    assert not {"train", "chat"} & set(imports(path))


def test_no_module_needs_itself() -> None:
    needs = {".".join(path.relative_to(ROOT).with_suffix("").parts): set(imports(path)) for path in FILES}
    graph = graphlib.TopologicalSorter({name: needed & needs.keys() for name, needed in needs.items()})
    assert len(list(graph.static_order())) == len(FILES)  # raises CycleError otherwise


def test_reading_knows_nothing_of_what_becomes_of_the_pairs() -> None:
    needed = {name for path in FILES if path.parent.name == "reading" for name in imports(path) if "chatbot." in name}
    above = {name for name in needed if not name.startswith("chatbot.corpus.reading.")}
    assert above == {"chatbot.errors", "chatbot.corpus.report"}


def test_corpus_needs_tensorflow_only_for_batches() -> None:
    users = [p.name for p in FILES if room(p) == "corpus" and "tensorflow" in set(imports(p))]
    assert users == ["batches.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    assert path.name not in {"utils.py", "helpers.py", "common.py"}
