"""The architecture: imports between packages, sub-packages and files go one way; files are short."""

import ast
import graphlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "chatbot").rglob("*.py"))

# The packages that each package may import.
BASE = {"version", "errors", "display", "flags", "commands", "command_line", "config", "memory", "quiet", "durable"}
MAY_IMPORT = {
    "version": set(),
    "display": set(),
    "errors": set(),
    "memory": set(),
    "durable": set(),
    "quiet": set(),
    "flags": {"errors"},
    "command_line": {"errors", "flags", "commands"},
    "config": {"errors", "flags", "commands", "command_line", "durable"},
    "corpus": BASE,
    "decoding": {"config", "corpus", "errors"},
    "model": BASE | {"corpus", "decoding"},
    "retrieval": BASE | {"corpus", "decoding"},
    "pretrained": BASE | {"corpus", "model"},
    "attempts": BASE | {"corpus", "decoding", "model", "retrieval", "pretrained"},
    "inference": BASE | {"corpus", "decoding", "model", "retrieval", "attempts"},
    "evaluation": BASE | {"corpus", "decoding", "model", "retrieval", "attempts", "inference"},
    "training": BASE
    | {"corpus", "decoding", "model", "retrieval", "pretrained", "attempts", "inference", "evaluation"},
    "export": BASE | {"corpus", "decoding", "model", "retrieval", "pretrained", "attempts", "inference", "evaluation"},
    "chat": BASE | {"corpus", "decoding", "retrieval", "attempts", "inference", "export"},
    "api": BASE | {"corpus", "attempts", "inference", "training", "chat"},
    "__init__": {"api", "errors", "version"},
    "commands": {"version", "errors"},
    "completion": {"config", "command_line", "commands", "flags"},
    "__main__": {"commands"},
}
# Commands that need no TensorFlow.
ATTEMPTS = {"chatbot.attempts.table", "chatbot.attempts.compare", "chatbot.attempts.folders"}


def package_of(path: Path) -> str:
    """The folder, or the file at the top, that a module belongs to."""
    return path.relative_to(ROOT / "chatbot").parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """chatbot/model/attention.py -> chatbot.model.attention."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_packages_import_only_listed_packages(path: Path) -> None:
    imported = {name.split(".")[1] for name in imports(path) if name.startswith("chatbot.")}
    doors = {"commands"} if path.name == "__main__.py" else set()
    assert imported - {package_of(path)} <= MAY_IMPORT[package_of(path)] | doors
    assert not {"train", "chat"} & set(imports(path))


def sub_package_of(module: str) -> str:
    """chatbot.training.machines.team -> chatbot.training.machines; a file beside sub-packages counts as one."""
    return ".".join(module.split(".")[:3])


@pytest.mark.parametrize("part_of", [str, sub_package_of], ids=["modules", "sub-packages"])
def test_imports_have_no_cycle(part_of: Callable[[str], str]) -> None:
    modules = {module_of(path) for path in FILES}
    imported: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        imported[part_of(module_of(path))] |= {part_of(name) for name in imports(path) if name in modules}
    graph = graphlib.TopologicalSorter({name: names - {name} for name, names in imported.items()})
    assert len(list(graph.static_order())) == len(imported)  # raises CycleError otherwise


def test_reading_imports_only_errors() -> None:
    imported = {name for path in FILES if path.parent.name == "reading" for name in imports(path) if "chatbot." in name}
    assert {name for name in imported if not name.startswith("chatbot.corpus.reading")} == {
        "chatbot.display",
        "chatbot.errors",
    }


def imported_at_once(*modules: str) -> set[str]:
    """These modules and all that they import, but not within functions."""
    paths = {module_of(path): path for path in FILES}
    found, left = set(), set(modules)
    while left:
        module = left.pop()
        found.add(module)
        if module in paths:
            body = ast.parse(paths[module].read_text(encoding="utf-8")).body
            left |= {n.module for n in body if isinstance(n, ast.ImportFrom) and n.module} - found
            found |= {alias.name for n in body if isinstance(n, ast.Import) for alias in n.names}
    return found


@pytest.mark.parametrize(
    ("modules", "settings", "later"),
    [
        ({"chatbot.training.start"}, "training", {"tensorflow", "keras", "matplotlib"}),
        (ATTEMPTS, "attempts", {"tensorflow", "keras", "matplotlib"}),
        ({"chatbot.chat.bots.start"}, "chat", {"tensorflow", "keras", "telegram", "uvicorn", "starlette"}),
    ],
)
def test_commands_start_without_slow_packages(modules: set[str], settings: str, later: set[str]) -> None:
    """A wrong flag and unusable pairs are reported at once: only imports within functions are later."""
    found = imported_at_once(*modules)
    assert f"chatbot.config.{settings}" in found
    assert not later & {name.split(".")[0] for name in found}


def test_corpus_does_not_import_tensorflow() -> None:
    assert not [p.name for p in FILES if package_of(p) == "corpus" and "tensorflow" in set(imports(p))]


def test_exports_answer_without_tensorflow() -> None:
    """Only imports within functions may, and the tokenizer imports jieba where it is used."""
    found = imported_at_once("chatbot.export.exported", "chatbot.chat.start")
    assert {"chatbot.decoding.search", "numpy"} <= found
    assert not {"tensorflow", "keras", "rjieba", "jieba"} & found
    assert not {name for name in found if name.startswith(("prompt_toolkit", "rich."))}  # for a terminal only


def test_packages_of_the_server_are_imported_by_the_server_alone() -> None:
    """The help and the chat in a terminal start without them."""
    packages = {"fastapi", "uvicorn", "starlette", "prometheus_client", "pydantic"}
    importing = {path.parent.name for path in FILES if packages & {name.split(".")[0] for name in imports(path)}}
    assert "server" in importing
    assert importing <= {"server", "page", "bots"}
    found = imported_at_once("chatbot.commands", "chatbot.chat.start")
    assert not {name for name in found if name.startswith(("chatbot.chat.server", "chatbot.chat.page"))}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_have_specific_names(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert path.name not in {"utils.py", "helpers.py", "common.py"}


@pytest.mark.parametrize("name", ["checkpoints", "data/ratings.jsonl", "tensorboard/default", "exports"])
def test_tests_cannot_access_user_files(name: str) -> None:
    assert Path.cwd() != ROOT
    for see in (os.listdir, os.mkdir, open):
        with pytest.raises(RuntimeError, match="a test must not access "):
            see(ROOT / name)


TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md", *FILES]
TEXTS.remove(ROOT / "docs" / "comparison-sources.md")  # has the files of other projects
FOLDERS = ("chatbot", "tests", "benchmarks", "docs", "deploy", "examples", ".github")
NAMED = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
NAMED += ["/train.py", "/chat.py", "/pyproject.toml", "/mkdocs.yml"]
IN_EXAMPLES = {"settings.yaml"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_files_exist(path: Path) -> None:
    names = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|yaml|toml))`", path.read_text(encoding="utf-8")))
    assert {name for name in names - IN_EXAMPLES if not any(file.endswith(f"/{name}") for file in NAMED)} == set()
