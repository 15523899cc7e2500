"""The Custom Scalars page: the charts by which a run is judged, on one page."""

from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2, summary

from chatbot.training.reporting.tower_curves import SECONDS, THROUGHPUT

# The title of each chart, and the tags of its curves as regular expressions that TensorBoard matches from the start of
# a tag. Every run with such a tag has a curve: the whole batch, each tower, or all.
RUN = {
    "Loss: the whole batch and every tower": ["loss$"],
    "Validation: nats per character": ["validation/nats_per_character$", "best/nats_per_character$"],
    "Target tokens/s of every tower": [f"{THROUGHPUT}$"],
    "Seconds that every GPU takes for its share": [f"{SECONDS}$"],
    "Skew: largest tower over the mean, minus 1": ["throughput/tower_skew$"],
    "Padding: share of the positions": ["throughput/padding$"],
    "Input wait: share of the time": ["(throughput/)?input_wait$"],
    "Learning rate": ["(optimisation/)?learning_rate$"],
    "Gradient norm before clipping": ["(optimisation/)?gradient_norm$"],
    "Skipped updates": ["optimisation/skipped_updates$"],
}
REPLIES = {
    "Overlap with the references: BLEU and chrF": ["validation/(bleu|chrf)$"],
    "Relevance to the question": ["validation/relevance_at_1$"],
    "Distinct tokens and characters": ["validation/distinct_"],
    "Share of the most common replies": ["validation/top"],
    "Entropy of the replies": ["validation/reply_entropy$"],
    "Tokens per reply": ["validation/mean_reply_tokens$"],
}


def layout_summary() -> Any:
    """Return the summary that holds the layout of the page."""
    pages = {"Run": RUN, "Validation: measures of replies": REPLIES}
    categories = [
        layout_pb2.Category(
            title=title,
            chart=[
                layout_pb2.Chart(title=name, multiline=layout_pb2.MultilineChartContent(tag=tags))
                for name, tags in charts.items()
            ],
        )
        for title, charts in pages.items()
    ]
    return summary.pb(layout_pb2.Layout(category=categories))
