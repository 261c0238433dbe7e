"""The images: scikit-learn's handwritten digits, split, and moved about for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from settings import Data

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


class Digits(NamedTuple):
    """Images and what they show.

    Attributes:
      images: shape (n, 8, 8, 1), ink from 0 to 1.
      labels: shape (n,), the digits 0 to 9.
    """

    images: Images
    labels: Labels


def load_split(settings: Data) -> tuple[Digits, Digits]:
    """The training and the test digits: a stratified split, always the same for one seed."""
    bunch = load_digits()
    images = (bunch.images[: settings.examples] / 16).astype(np.float32)[..., np.newaxis]
    labels = bunch.target[: settings.examples].astype(np.int32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=settings.test_fraction, random_state=settings.seed, stratify=labels
    )
    return Digits(train_images, train_labels), Digits(test_images, test_labels)


def batches(digits: Digits, size: int, *, shift: int, rng: np.random.Generator) -> Iterator[Digits]:
    """One epoch of shuffled batches, each image moved by up to `shift` pixels.

    What does not fill the last batch is left out, so that all batches have one
    shape and the training step compiles once.
    """
    order = rng.permutation(len(digits.labels))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield Digits(shifted(digits.images[chosen], shift, rng), digits.labels[chosen])


def shifted(images: Images, shift: int, rng: np.random.Generator) -> Images:
    """Each image moved by its own random offset; what comes in from outside is blank."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    down, right = rng.integers(0, 2 * shift + 1, (2, count))
    rows = down[:, None, None] + np.arange(height)[:, None]
    columns = right[:, None, None] + np.arange(width)
    moved: Images = padded[np.arange(count)[:, None, None], rows, columns]
    return moved
