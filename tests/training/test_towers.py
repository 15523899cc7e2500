"""Many towers do exactly what one device does, each on its own device, and side by side."""

import dataclasses
from itertools import islice

import keras
import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batches import Batches, pad_batch
from chatbot.model.loss import sequence_loss
from chatbot.model.seq2seq import built_model
from chatbot.training.optimizer import build_optimizer
from chatbot.training.selftest import (
    ALWAYS_CLIPPED,
    PROOFS,
    SETTINGS,
    STEPS,
    TOLERANCE,
    VOCABULARY,
    difference,
    every_pair_once,
    masks_differ,
    random_pairs,
    run,
    selftest,
)
from chatbot.training.towers import Towers


@pytest.mark.parametrize("towers", [2, 4])
@pytest.mark.parametrize("name", PROOFS)
def test_many_towers_equal_one(cpus: list[str], name: str, towers: int) -> None:
    assert difference(PROOFS[name], cpus[:towers]) < TOLERANCE


@pytest.mark.parametrize("name", PROOFS)
def test_one_tower_equals_a_training_loop_written_out(cpus: list[str], name: str) -> None:
    """The twin: the mean loss of the whole batch, Keras's own clipping, one optimizer step."""
    settings = PROOFS[name]
    pairs = random_pairs(67, settings.seed)
    model = built_model(settings, VOCABULARY)
    start = [v.numpy() for v in model.trainable_variables]
    rates = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    optimizer = rates[settings.optimizer](settings.learning_rate, global_clipnorm=settings.max_gradient_norm)
    batches = Batches([pairs], settings.batch_size, settings.seed)
    planned = [places[:, 1] for epoch in range(3) for _, places in batches.plan(epoch)]
    norms = []
    for rows in planned[:STEPS]:
        batch = pad_batch(pairs, rows, 12, 12)
        with tf.GradientTape() as tape:
            logits = model(batch.source, batch.target_in, tf.where(batch.weights > 0))
            real = batch.target_out[batch.weights > 0]
            loss, count = sequence_loss(logits, tf.constant(real), tf.ones(len(real)))
            mean = loss / count
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(mean, model.trainable_variables)]
        norms.append(float(tf.linalg.global_norm(gradients)))
        optimizer.apply(gradients, model.trainable_variables)
    weights, results, _ = run(settings, cpus[:1], pairs)
    for ours, theirs in zip(weights, model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)
    np.testing.assert_allclose([float(r.gradient_norm) for r in results], norms, rtol=1e-4)
    moved = max(np.abs(ours - before).max() for ours, before in zip(weights, start, strict=True))
    assert moved > 1000 * TOLERANCE
    assert (max(norms) > ALWAYS_CLIPPED) or settings.max_gradient_norm != ALWAYS_CLIPPED


def test_losses_and_counts_add_up_to_those_of_the_batch(cpus: list[str]) -> None:
    pairs = random_pairs(67, 1)
    _, one, _ = run(SETTINGS, cpus[:1], pairs, steps=3)
    _, four, _ = run(SETTINGS, cpus, pairs, steps=3)
    for whole, parts in zip(one, four, strict=True):
        np.testing.assert_allclose(sum(parts.loss_sums.numpy()), whole.loss_sums.numpy()[0], rtol=1e-5)
        assert sum(parts.weight_sums.numpy()) == whole.weight_sums.numpy()[0]
        assert int(parts.examples) == int(whole.examples)


def test_towers_draw_different_dropout_masks(cpus: list[str]) -> None:
    assert masks_differ(cpus)


def test_every_pair_is_seen_once_by_one_tower(cpus: list[str]) -> None:
    assert every_pair_once(len(cpus))


def test_a_batch_with_fewer_pairs_than_towers(cpus: list[str]) -> None:
    """Towers without a pair change nothing, and are not counted."""
    settings = dataclasses.replace(SETTINGS, batch_size=4)
    pairs = random_pairs(1, 1)
    many, (result,), _ = run(settings, cpus, pairs, steps=1)
    one, _, _ = run(settings, cpus[:1], pairs, steps=1)
    assert result.weight_sums.numpy()[1:].tolist() == [0, 0, 0]
    assert int(result.examples) == 1
    assert all(np.abs(a - b).max() < TOLERANCE for a, b in zip(many, one, strict=True))


def test_traced_once_a_bucket_and_slots_exist_once(cpus: list[str]) -> None:
    pairs = random_pairs(200, 1)
    settings = dataclasses.replace(SETTINGS, batch_size=8)
    model = built_model(settings, VOCABULARY)
    optimizer = build_optimizer(settings, model.trainable_variables)
    towers = Towers(model, optimizer, cpus[:3], 5.0, 1)
    batches = Batches([pairs], settings.batch_size, settings.seed)
    assert len(batches.buckets) > 1
    for number, shares in enumerate(islice(batches.prefetched(0, 3), 2 * batches.steps_per_epoch)):
        towers(shares, number)
    assert towers.traces == len(batches.buckets)
    assert towers.gradients.experimental_get_tracing_count() == len(batches.buckets)
    # Adam: the step, the rate, and two slots a weight.
    assert len(optimizer.variables) == 2 + 2 * len(model.trainable_variables)
    assert int(optimizer.iterations) == 2 * batches.steps_per_epoch


def graph_of_the_step(cpus: list[str]) -> tf.Graph:
    """The graph of a step of four towers."""
    _, _, towers = run(dataclasses.replace(SETTINGS, keep_prob=0.5), cpus, random_pairs(20, 1), steps=1)
    (traced,) = towers._traced.values()
    return traced.graph


def test_forward_and_backward_of_a_tower_are_one_call_on_its_device(cpus: list[str]) -> None:
    calls = [op for op in graph_of_the_step(cpus).get_operations() if "PartitionedCall" in op.type]
    towers = [op for op in calls if b"tower_gradients" in op.node_def.attr["f"].func.name.encode()]
    assert [op.device.rsplit("device:", 1)[-1] for op in towers] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def test_no_edge_chains_the_towers(cpus: list[str]) -> None:
    operations = graph_of_the_step(cpus).get_operations()
    towers = [op for op in operations if "tower_gradients" in op.node_def.attr["f"].func.name]
    assert len(towers) == 4
    for tower in towers:
        before, waiting = set(), [tower]
        while waiting:
            op = waiting.pop()
            needed = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            waiting += [n for n in needed if n not in before]
            before.update(needed)
        assert not before & set(towers)


def test_the_selftest_passes_here_and_fails_when_towers_disagree(
    cpus: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selftest(cpus[:2]) == 0
    assert "Verdict: these devices train together as one." in capsys.readouterr().out

    def mean_of_means(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, count = sequence_loss(logits, targets, weights)
        return loss / count * 40, count

    monkeypatch.setattr("chatbot.training.towers.sequence_loss", mean_of_means)
    assert selftest(cpus[:2]) == 1
    assert "do NOT train as one" in capsys.readouterr().out
