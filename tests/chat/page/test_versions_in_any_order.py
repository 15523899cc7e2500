"""Random actions in two tabs of one conversation, compared with a simple model of it."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from selenium import webdriver

from tests.chat.page.test_files import in_browser

pytestmark = pytest.mark.system

TABS = st.sampled_from([0, 1])
TEXTS = st.sampled_from(["早", ""])  # the last one is that of a reply that failed


class Node(NamedTuple):
    """A question or a reply. ratings: the number of its ratings so far. rating: the last one, or None."""

    parent: str | None
    text: str
    is_question: bool
    ratings: int = 0
    rating: str | None = None


Nodes = dict[str, Node]


def versions(nodes: Nodes, parent: str | None) -> list[str]:
    """The versions below a node, the oldest first."""
    return [name for name, node in nodes.items() if node.parent == parent]


def without_failed(nodes: Nodes) -> Nodes:
    """Remove failed replies without followers that have another version, with a text or later."""
    left = {**nodes}
    for name, node in nodes.items():
        others = [other for other in versions(nodes, node.parent) if other != name]
        is_replaced = any(nodes[other].text for other in others) or others != versions(nodes, node.parent)[:-1]
        if not node.text and is_replaced and not versions(nodes, name):
            del left[name]
    return left


def path_to(nodes: Nodes, name: str) -> list[str]:
    """Return the path from the root through a node to its newest leaf."""
    path = [name]
    while (parent := nodes[path[0]].parent) is not None:
        path.insert(0, parent)
    while following := versions(nodes, path[-1]):
        path.append(following[-1])
    return path


def both(nodes: Nodes, others: Nodes) -> Nodes:
    """Merge the nodes of two tabs. The rating from the tab that rated the reply more often wins."""
    newer = {name: node for name, node in others.items() if name in nodes and node.ratings > nodes[name].ratings}
    return without_failed({**nodes, **{name: others[name] for name in others if name not in nodes}, **newer})


class Tabs(RuleBasedStateMachine):
    """Two tabs of a browser that show one conversation."""

    browser: webdriver.Chrome

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Nodes] = [{}, {}]
        self.paths: list[list[str]] = [[], []]
        self.kept: Nodes = {}
        self.kept_path: list[str] = []
        self.browser.execute_script("begin()")

    def act(self, tab: int, name: str, *more: Any) -> Any:
        return self.browser.execute_script("return act(...arguments)", name, tab, *more)

    def check(self, tab: int) -> None:
        """Check that the tab has the nodes of the model in their order, and shows its path."""
        path, found = self.act(tab, "describe")
        nodes = self.nodes[tab]
        assert found == [[name, node.parent, node.text, node.rating] for name, node in nodes.items()]
        assert path == self.paths[tab]

    def reply(self, tab: int, question: str, text: str) -> None:
        name = self.act(tab, "reply", question, text)
        nodes = {**self.nodes[tab], name: Node(question, text, is_question=False)}
        self.nodes[tab] = without_failed(nodes)
        self.paths[tab] = path_to(self.nodes[tab], name if name in self.nodes[tab] else question)
        self.check(tab)

    @initialize(text=TEXTS)
    def begin(self, text: str) -> None:
        """Let both tabs show a question that one of them has asked."""
        self.add(0, None, text)
        self.keep(0)
        self.reload(1)

    def add(self, tab: int, parent: str | None, text: str) -> None:
        question = self.act(tab, "ask", parent, "q")
        self.nodes[tab] = {**self.nodes[tab], question: Node(parent, "q", is_question=True)}
        self.reply(tab, question, text)

    @rule(tab=TABS, data=st.data(), text=TEXTS)
    def ask(self, tab: int, data: st.DataObject, text: str) -> None:
        """Ask at the end, or as another version of a shown question."""
        replies = [name for name in self.paths[tab] if not self.nodes[tab][name].is_question]
        self.add(tab, data.draw(st.sampled_from([*replies[-1:] * 3, *replies, None])), text)

    @rule(tab=TABS, data=st.data(), text=TEXTS)
    def retry(self, tab: int, data: st.DataObject, text: str) -> None:
        shown = [name for name in self.paths[tab] if self.nodes[tab][name].is_question]
        self.reply(tab, data.draw(st.sampled_from(shown)), text)

    @rule(tab=TABS, data=st.data())
    def show(self, tab: int, data: st.DataObject) -> None:
        parents = [None, *self.paths[tab][:-1]]
        name = data.draw(st.sampled_from(versions(self.nodes[tab], data.draw(st.sampled_from(parents)))))
        self.act(tab, "show", name)
        self.paths[tab] = path_to(self.nodes[tab], name)
        self.check(tab)

    @rule(tab=TABS, data=st.data(), rating=st.sampled_from(["good", "bad", None]))
    def rate(self, tab: int, data: st.DataObject, rating: str | None) -> None:
        name = data.draw(st.sampled_from([x for x in self.paths[tab] if not self.nodes[tab][x].is_question]))
        self.act(tab, "rate", name, rating)
        node = self.nodes[tab][name]
        self.nodes[tab] = {**self.nodes[tab], name: node._replace(ratings=node.ratings + 1, rating=rating)}
        self.check(tab)

    @rule(tab=TABS)
    def keep(self, tab: int) -> None:
        """Merge a tab with the stored conversation, and check that it knows which of them has changes."""
        before, last = self.nodes[tab], self.paths[tab][-1]
        has_more = self.act(tab, "save")
        self.nodes[tab] = both(before, self.kept)
        self.paths[tab] = path_to(self.nodes[tab], last if last in self.nodes[tab] else [*self.nodes[tab]][-1])
        self.check(tab)
        assert has_more == [lacks(before, self.kept), lacks(self.kept, before)]
        self.kept, self.kept_path = self.nodes[tab], self.paths[tab]

    @rule(tab=TABS)
    def reload(self, tab: int) -> None:
        self.act(tab, "reload")
        self.nodes[tab], self.paths[tab] = self.kept, self.kept_path
        self.check(tab)


def lacks(nodes: Nodes, others: Nodes) -> bool:
    """Return whether others have a node or a rating that is missing here."""
    return any(name not in nodes or node.ratings > nodes[name].ratings for name, node in others.items())


def test_versions_in_any_order(bare: webdriver.Chrome) -> None:
    in_browser(bare, Path(__file__).with_name("conversations.js").read_text(encoding="utf-8"))
    Tabs.browser = bare
    few = settings(max_examples=25, stateful_step_count=30)  # a step asks the browser two or three times
    run_state_machine_as_test(Tabs, settings=few)
