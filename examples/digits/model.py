"""The network: two convolutions, two linear layers; declared, with no `__init__`."""

import jax

import declax as dx


@dx.dataclass
class ConvBlock(dx.Module):
    """Convolution, batch norm, relu, and a max pool that halves the image."""

    inputs: int
    outputs: int
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    conv: dx.Conv = dx.submodule(lambda self, rngs: dx.Conv(self.inputs, self.outputs, (3, 3), rngs=rngs))
    norm: dx.BatchNorm = dx.submodule(lambda self, rngs: dx.BatchNorm(self.outputs, momentum=0.9, rngs=rngs))

    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps (n, height, width, inputs) to (n, height / 2, width / 2, outputs)."""
        return dx.max_pool(dx.relu(self.norm(self.conv(images))), (2, 2), strides=(2, 2))


@dx.dataclass
class CNN(dx.Module):
    """Reads an 8x8 image of a digit."""

    channels: int
    hidden: int
    dropout: float
    classes: int = 10
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    first: ConvBlock = dx.submodule(lambda self, rngs: ConvBlock(1, self.channels, rngs=rngs))
    second: ConvBlock = dx.submodule(lambda self, rngs: ConvBlock(self.channels, 2 * self.channels, rngs=rngs))
    dense: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2 * 2 * 2 * self.channels, self.hidden, rngs=rngs))
    drop: dx.Dropout = dx.submodule(lambda self, rngs: dx.Dropout(self.dropout, rngs=rngs))
    head: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.hidden, self.classes, rngs=rngs))

    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images (n, 8, 8, 1) to logits (n, classes)."""
        features = self.second(self.first(images))
        features = features.reshape(features.shape[0], -1)
        return self.head(self.drop(dx.relu(self.dense(features))))
