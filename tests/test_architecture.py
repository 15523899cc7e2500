"""The architecture: imports go one way, between packages, sub-packages and files, and files stay small."""

import ast
import graphlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "chatbot").rglob("*.py"))

# The packages that each package may import.
BASE = {"version", "errors", "flags", "config", "memory", "quiet"}
MAY_IMPORT = {
    "version": set(),
    "errors": set(),
    "memory": set(),
    "quiet": set(),
    "flags": {"version", "errors"},
    "config": {"errors", "flags"},
    "corpus": BASE,
    "model": BASE | {"corpus"},
    "decoding": set(),
    "inference": BASE | {"corpus", "model", "decoding"},
    "evaluation": BASE | {"corpus", "model", "inference"},
    "training": BASE | {"corpus", "model", "inference", "evaluation"},
    "chat": BASE | {"corpus", "model", "inference"},
    "api": BASE | {"corpus", "model", "inference", "training"},
    "commands": BASE | {"corpus", "model", "inference", "training", "chat"},
}
# Between the sub-packages of corpus, in the order in which data pass through them.
CORPUS = {
    "reading": set(),
    "text": set(),
    "encoding": {"reading", "text"},
    "batching": {"encoding"},
    "inspection": {"reading", "text", "encoding"},
}


def package_of(path: Path) -> str:
    """The folder, or the file at the top, that a module belongs to."""
    return path.relative_to(ROOT / "chatbot").parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """chatbot/model/loss.py -> chatbot.model.loss."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """The modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_packages_import_only_what_is_listed(path: Path) -> None:
    if package_of(path) == "__init__":
        return
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("chatbot.")}
    assert ours - {package_of(path)} <= MAY_IMPORT[package_of(path)]
    assert not {"train", "chat"} & set(imports(path))


@pytest.mark.parametrize("name", CORPUS)
def test_data_pass_through_corpus_one_way(name: str) -> None:
    folder = ROOT / "chatbot" / "corpus" / name
    used = {
        module.split(".")[2] for path in folder.glob("*.py") for module in imports(path) if "chatbot.corpus." in module
    }
    assert used - {name} <= CORPUS[name]


def test_no_file_needs_itself() -> None:
    needs = {module_of(path): set(imports(path)) for path in FILES}
    graph = graphlib.TopologicalSorter({name: needed & needs.keys() for name, needed in needs.items()})
    assert len(list(graph.static_order())) == len(FILES)  # raises CycleError otherwise


def sub_package_of(module: str) -> str:
    """chatbot.training.machines.team -> chatbot.training.machines; a file beside sub-packages is one by itself."""
    return ".".join(module.split(".")[:3])


def test_no_two_sub_packages_need_each_other() -> None:
    modules = {module_of(path) for path in FILES}
    needs: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        needs[sub_package_of(module_of(path))] |= {sub_package_of(name) for name in imports(path) if name in modules}
    graph = graphlib.TopologicalSorter({name: needed - {name} for name, needed in needs.items()})
    assert len(list(graph.static_order())) == len(needs)


def test_reading_knows_nothing_of_what_becomes_of_the_pairs() -> None:
    needed = {name for path in FILES if path.parent.name == "reading" for name in imports(path) if "chatbot." in name}
    assert {name for name in needed if not name.startswith("chatbot.corpus.reading.")} == {"chatbot.errors"}


def test_corpus_needs_tensorflow_only_for_batches() -> None:
    users = [p.name for p in FILES if package_of(p) == "corpus" and "tensorflow" in set(imports(p))]
    assert users == ["batches.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_stays_small_and_has_a_name_of_its_own(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    assert path.name not in {"utils.py", "helpers.py", "common.py"}
