"""The tables of data beside the modules, and the one of words around texts, as regular expressions."""

import functools
import importlib.resources
import re
from typing import Any

import yaml

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be installed without its C extension


@functools.cache
def table_of(name: str) -> Any:
    """Return the content of a YAML file beside this module."""
    content = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Loader(content).get_single_data()


@functools.cache
def any_of(name: str) -> str:
    """Return the expression of all rows of a table of wordings.yaml."""
    return expression("|".join(table_of("wordings.yaml")[name]))


def expression(text: str) -> str:
    """Return an expression with those of tables in place of their names, such as <media>."""
    return re.sub(r"(?<!P)<([a-z]+)>", lambda name: any_of(name[1]), text)


def pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of all rows of a table of wordings.yaml."""
    return re.compile(any_of(name), re.IGNORECASE)
