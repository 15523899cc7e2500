"""The Graphs page: the graph of the training step."""

from typing import Any

from chatbot.training.variable_update.graph import Graph

# Larger constants, in bytes, are left out, since the page shows the operations; a larger graph is left out as a whole.
LARGEST_CONSTANT, LARGEST_GRAPH = 1024, 50_000_000


def step_graph(train_step: Any) -> Any:
    """Return the GraphDef of the largest graph that a variable update has traced, which is that of a whole step.

    None before the first step, and if it is too large. Nothing is traced.
    """
    traced = [value.traced for value in vars(train_step).values() if isinstance(value, Graph) and value.traced]
    if not traced:
        return None
    graph = max(traced, key=lambda concrete: len(concrete.graph.get_operations())).graph
    definition = graph.as_graph_def(add_shapes=True)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            if node.op == "Const" and node.attr["value"].ByteSize() > LARGEST_CONSTANT:
                node.attr["value"].tensor.Clear()
    return definition if definition.ByteSize() <= LARGEST_GRAPH else None
