"""The trainer: two layers, dropout, momentum, a step-wise learning rate, shuffled batches, and all of its state.

Every step is a function of the state alone, so a state that is restored whole continues the very same run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient_launch.checkpoint.arrays import Array
from resilient_launch.checkpoint.sampler import epoch_order

NUM_INPUTS, NUM_HIDDEN = 10, 16
NUM_SAMPLES, BATCH = 640, 32
BATCHES_PER_EPOCH = NUM_SAMPLES // BATCH
MOMENTUM, DROPOUT = 0.9, 0.2
FIRST_RATE, HALVED_EVERY_STEPS = 0.05, 200
LAYERS = ("W1", "b1", "W2", "b2")
PIECES = ("mom", "rng", "pos", "step")
"""Momentum, dropout generator, position in the epoch, step counter."""
_DATA_SEED, _INIT_SEED, _DROPOUT_SEED, _ORDER_SEED = 101, 102, 103, 104


def make_data() -> tuple[Array, Array]:
    """Inputs (samples, 10) and labels (samples, 1) of a task that is not linear, the same ones every time."""
    random = np.random.Generator(np.random.PCG64(_DATA_SEED))
    inputs = random.standard_normal((NUM_SAMPLES, NUM_INPUTS))
    score = inputs[:, 0] * inputs[:, 1] + np.sin(2 * inputs[:, 2]) + 0.5 * inputs[:, 3]
    return inputs, (score > 0).astype(np.float64)[:, None]


def learning_rate(step: int) -> float:
    """The rate of the step after ``step`` completed ones: halved every 200 steps."""
    return float(FIRST_RATE / 2 ** (step // HALVED_EVERY_STEPS))


class Trainer:
    """The whole training state, and the step that moves it on. An ArrayState.

    ``weights`` and ``velocity`` (momentum) by layer; ``step`` chooses the learning rate, ``epoch`` and ``position`` (in
    batches) choose the samples, ``dropout`` draws the masks.
    """

    def __init__(self) -> None:
        self.inputs, self.labels = make_data()
        random = np.random.Generator(np.random.PCG64(_INIT_SEED))
        self.weights: dict[str, Array] = {
            "W1": 0.3 * random.standard_normal((NUM_INPUTS, NUM_HIDDEN)),
            "b1": np.zeros(NUM_HIDDEN),
            "W2": 0.3 * random.standard_normal((NUM_HIDDEN, 1)),
            "b2": np.zeros(1),
        }
        self.velocity: dict[str, Array] = {layer: np.zeros_like(value) for layer, value in self.weights.items()}
        self.step, self.epoch, self.position = 0, 0, 0
        self.dropout = np.random.Generator(np.random.PCG64(_DROPOUT_SEED))

    def forget(self, piece: str) -> None:
        """Put one of PIECES back to what a fresh start has, as if it had not been saved."""
        fresh = Trainer()
        match piece:
            case "mom":
                self.velocity = fresh.velocity
            case "rng":
                self.dropout = fresh.dropout
            case "pos":
                self.position = fresh.position
            case "step":
                self.step = fresh.step
            case _:
                raise ValueError(f"{piece!r} is no piece of the state")

    def train_step(self) -> float:
        """Learn from the next batch, without counting the step; returns the batch's loss before the update."""
        order = epoch_order(NUM_SAMPLES, _ORDER_SEED, self.epoch)
        batch = order[self.position * BATCH : (self.position + 1) * BATCH]
        inputs, labels = self.inputs[batch], self.labels[batch]
        hidden = np.tanh(inputs @ self.weights["W1"] + self.weights["b1"])
        kept = (self.dropout.random(hidden.shape) >= DROPOUT) / (1 - DROPOUT)
        dropped = hidden * kept
        chance = 1 / (1 + np.exp(-(dropped @ self.weights["W2"] + self.weights["b2"])))
        loss = _cross_entropy(chance, labels)
        # Of the loss by the output's argument, where sigmoid and cross entropy cancel.
        error = (chance - labels) / BATCH
        back = (error @ self.weights["W2"].T) * kept * (1 - hidden**2)
        gradients = {"W1": inputs.T @ back, "b1": back.sum(0), "W2": dropped.T @ error, "b2": error.sum(0)}
        rate = learning_rate(self.step)
        for layer, gradient in gradients.items():
            self.velocity[layer] = MOMENTUM * self.velocity[layer] + gradient
            self.weights[layer] = self.weights[layer] - rate * self.velocity[layer]
        return loss

    def evaluate(self) -> float:
        """The loss over all samples, without dropout."""
        hidden = np.tanh(self.inputs @ self.weights["W1"] + self.weights["b1"])
        chance = 1 / (1 + np.exp(-(hidden @ self.weights["W2"] + self.weights["b2"])))
        return _cross_entropy(chance, self.labels)

    def advance(self) -> int:
        self.step += 1
        self.epoch, self.position = divmod(self.epoch * BATCHES_PER_EPOCH + self.position + 1, BATCHES_PER_EPOCH)
        return self.step

    def arrays(self) -> dict[str, Array]:
        weights = {f"weights/{layer}": value for layer, value in self.weights.items()}
        return weights | {f"velocity/{layer}": value for layer, value in self.velocity.items()}

    def values(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, "dropout": self.dropout.bit_generator.state}

    def put(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.weights = {layer: arrays[f"weights/{layer}"] for layer in LAYERS}
        self.velocity = {layer: arrays[f"velocity/{layer}"] for layer in LAYERS}
        self.epoch, self.position = int(values["epoch"]), int(values["position"])
        self.dropout.bit_generator.state = values["dropout"]

    def inexactness(self, world_size: int) -> tuple[str, ...]:
        return ()

    def digest(self) -> str:
        """16 hexadecimal digits over the weights."""
        value = hashlib.sha256()
        for layer in LAYERS:
            value.update(np.ascontiguousarray(self.weights[layer]).tobytes())
        return value.hexdigest()[:16]


def _cross_entropy(chance: Array, labels: Array) -> float:
    return float(-np.mean(np.where(labels > 0, np.log(chance), np.log1p(-chance))))


def shard_of(array: str) -> str:
    """The file of an array: one for each layer, with its weights and its velocity."""
    return f"shard-{array.rsplit('/', 1)[-1]}.bin"
