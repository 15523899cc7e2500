"""Plants a random sample of small mistakes, one at a time, and counts how many of them the tests notice.

cosmic-ray knows the mistakes (operators, comparisons, conditions, numbers, loops) and changes files on disk, so any
tests can run, with TensorFlow and processes of their own. The files are those of copies of the tree, one for each
process. A mistake is noticed if a test fails in the file that mirrors the changed one or beside it.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
# These mostly raise an error when the file is imported, which any test notices: `int | None` is an operator, too.
LOUD = "BitOr", "BitAnd", "BitXor", "ExceptionReplacer", "RemoveDecorator", "MatMul"
FAST = "not slow and not gpu"
LONGEST_TESTS = 900  # seconds; a mistake without an end is noticed


def mistakes(paths: list[Path], number: int, seed: int) -> list[MutationSpec]:
    """Return a random sample of places in these files, with one mistake for each.

    A place where many operators fit is as likely as one where one fits.
    """
    places: dict[tuple[object, ...], list[MutationSpec]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite") as session:
        init(paths, session, {})
        for item in session.work_items:
            (mistake,) = item.mutations
            if not any(word in mistake.operator_name for word in LOUD):
                places[mistake.module_path, mistake.start_pos].append(mistake)
    generator = random.Random(seed)
    chosen = generator.sample(sorted(places), min(number, len(places)))
    return [generator.choice(sorted(places[place], key=lambda m: (m.operator_name, m.occurrence))) for place in chosen]


def mirrored_tests(path: Path) -> list[str]:
    """Return chatbot/a/b.py -> tests/a/test_b.py, if it exists, and the other files of tests/a."""
    folder = Path("tests", *path.parent.parts[1:])
    while not list(folder.glob("test_*.py")):
        folder = folder.parent
    mirror = folder / f"test_{path.stem}.py"
    files = sorted(folder.glob("test_*.py"), key=lambda file: (file != mirror, file.name))
    return [str(file) for file in files]


def enter_copy(folder: str) -> None:
    """Make a copy of the tracked files, as they are, the current directory of a worker process."""
    copy = Path(folder, str(os.getpid()))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    os.chdir(copy)


def try_mistake(mistake: MutationSpec) -> tuple[MutationSpec, bool, str]:
    """Return the mistake, whether the tests noticed it, and its difference."""
    tests = " ".join(mirrored_tests(mistake.module_path))
    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider -m '{FAST}' {tests}"
    result = mutate_and_test([mistake], command, LONGEST_TESTS)
    return mistake, result.test_outcome != TestOutcome.SURVIVED, result.diff or result.output or ""


def main() -> None:
    """Try the mistakes; print the unnoticed ones as they are found, then the share of noticed ones by package."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, default=[Path("chatbot")], help="files or folders; default: all")
    parser.add_argument("--number", type=int, default=300, help="mistakes to try; default: 300")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a core")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    paths = [file for path in arguments.path for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    noticed, tried = Counter[str](), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.processes, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        results = pool.map(try_mistake, mistakes(paths, arguments.number, arguments.seed))
        for mistake, was_noticed, difference in tqdm(results, total=arguments.number):
            package = mistake.module_path.parts[1].removesuffix(".py")
            tried[package] += 1
            noticed[package] += was_noticed
            if not was_noticed:
                tqdm.write(f"\nunnoticed: {mistake.operator_name}\n{difference}")
    for package in sorted(tried):
        print(f"{package:12} {noticed[package]:4} of {tried[package]}")
    print(f"{'all':12} {noticed.total():4} of {tried.total()}: {noticed.total() / max(1, tried.total()):.0%}")


if __name__ == "__main__":
    main()
