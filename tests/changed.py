"""Finds the tests of product files. `python -m tests.changed` prints the tests of the files that changed in git."""

import ast
import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the names of all modules, and of their members, that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def files_for(path: Path) -> list[Path]:
    """Return the test files of chatbot/a/b.py: tests/a/test_b.py, its neighbours, and all that import the module.

    A test file also imports what its helpers in tests/ import. path: relative to the root, which is the current
    directory.
    """
    folder = Path("tests", *path.parent.parts[1:])
    while not list(folder.glob("test_*.py")):
        folder = folder.parent
    module = ".".join(path.with_suffix("").parts)
    helpers = [file for file in Path("tests").rglob("*.py") if not file.name.startswith(("test_", "conftest"))]
    modules = {module} | {".".join(file.with_suffix("").parts) for file in helpers if module in imported(file)}
    importing = {file for file in Path("tests").rglob("test_*.py") if imported(file) & modules}
    mirrors = folder / f"test_{path.stem}.py", folder / f"test_{path.parent.name}.py"
    files = {*folder.glob("test_*.py"), *importing}
    return sorted(files, key=lambda file: (file not in mirrors, file not in importing, file.parent != folder, file))


def files_for_changes(changed: Iterable[Path]) -> list[Path]:
    """Return the test files of changed files, including changed test files."""
    files: dict[Path, None] = {}  # in order
    for path in changed:
        if path.suffix == ".py" and path.parts[0] == "chatbot":
            files |= dict.fromkeys(files_for(path))
        elif path.suffix == ".py" and path.parts[0] == "tests":
            module = ".".join(path.with_suffix("").parts)
            found = [path] if path.name.startswith("test_") else []
            found += [file for file in Path("tests").rglob("test_*.py") if module in imported(file)]
            files |= dict.fromkeys(found)
        elif path.suffix in (".md", ".yaml"):
            files[Path("tests/test_documents.py")] = None
    return list(files)


def main() -> None:
    """Print the tests of the files that differ from the last commit, or of its own files if none differs."""

    def names(*command: str) -> list[str]:
        completed = subprocess.run(["git", *command], capture_output=True, check=True, encoding="utf-8")
        return [name for name in completed.stdout.split("\0") if name and Path(name).exists()]

    changed = names("diff", "--name-only", "-z", "HEAD") + names("ls-files", "-z", "--others", "--exclude-standard")
    changed = changed or names("diff", "--name-only", "-z", "HEAD~", "HEAD")
    print(*files_for_changes(map(Path, changed)), sep="\n")


if __name__ == "__main__":
    main()
