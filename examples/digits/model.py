"""Three networks that read digits; declared, with no `__init__`."""

import jax.numpy as jnp
from jaxtyping import Array, Float

import declax as dx


@dx.dataclass(where=("height >= 2", "width >= 2"))
class ConvBlock(dx.Layer):
    """Convolution, batch norm, relu, and a max pool that halves the image."""

    inputs: int = dx.field()
    outputs: int = dx.field()
    conv = dx.Conv(inputs, outputs, (3, 3))
    norm = dx.BatchNorm(outputs, momentum=0.9)

    def __call__(
        self, images: Float[Array, "n height width {self.inputs}"]
    ) -> Float[Array, "n height//2 width//2 {self.outputs}"]:
        """Maps (n, height, width, inputs) to (n, height / 2, width / 2, outputs)."""
        return dx.max_pool(dx.relu(self.norm(self.conv(images))), (2, 2), strides=(2, 2))


@dx.dataclass
class CNN(dx.Layer):
    """Two convolutions and two linear layers."""

    channels: int = dx.field(default=32, ge=1, help="of the first convolution; the second has twice as many")
    hidden: int = dx.field(default=64, ge=1, help="size between the linear layers")
    dropout: float = dx.field(default=0.3, ge=0, le=1, help="the share that is dropped before the last layer")
    classes: int = dx.field(default=10)
    first = ConvBlock(1, channels)
    second = ConvBlock(channels, 2 * channels)
    dense = dx.Linear(2 * 2 * 2 * channels, hidden)
    drop = dx.Dropout(dropout)
    head = dx.Linear(hidden, classes)

    def __call__(self, images: Float[Array, "n 8 8 1"]) -> Float[Array, "n {self.classes}"]:
        """Maps images (n, 8, 8, 1) to logits (n, classes)."""
        features = self.second(self.first(images))
        features = features.reshape(features.shape[0], -1)
        return self.head(self.drop(dx.relu(self.dense(features))))


@dx.dataclass
class MLP(dx.Layer):
    """Linear layers over all pixels."""

    hidden: int = dx.field(default=128, ge=1, help="size of each layer between the pixels and the classes")
    depth: int = dx.field(default=2, ge=1, help="how many such layers there are")
    dropout: float = dx.field(default=0.2, ge=0, le=1, help="the share that is dropped after each of them")
    classes: int = dx.field(default=10)

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        """The first is over the pixels."""
        return [dx.Linear(8 * 8 if i == 0 else self.hidden, self.hidden, rngs=rngs) for i in range(self.depth)]

    drop = dx.Dropout(dropout)
    head = dx.Linear(hidden, classes)

    def __call__(self, images: Float[Array, "n 8 8 1"]) -> Float[Array, "n {self.classes}"]:
        """Maps images (n, 8, 8, 1) to logits (n, classes)."""
        features = images.reshape(images.shape[0], -1)
        for layer in self.layers:
            features = self.drop(dx.relu(layer(features)))
        return self.head(features)


@dx.dataclass
class Mix(dx.Layer):
    """Adds what two layers make of the last axis."""

    size: int = dx.field()
    hidden: int = dx.field()
    up = dx.Linear(size, hidden)
    down = dx.Linear(hidden, size)

    def __call__(self, x: Float[Array, "n other {self.size}"]) -> Float[Array, "n other {self.size}"]:
        return self.down(dx.gelu(self.up(x)))


@dx.dataclass
class MixerBlock(dx.Layer):
    """Mixes over the patches, then over the channels of each."""

    patches: int = dx.field()
    width: int = dx.field()
    hidden: int = dx.field()
    patch_norm = dx.LayerNorm(width)
    over_patches = Mix(patches, hidden)
    channel_norm = dx.LayerNorm(width)
    over_channels = Mix(width, hidden)

    def __call__(
        self, x: Float[Array, "n {self.patches} {self.width}"]
    ) -> Float[Array, "n {self.patches} {self.width}"]:
        """Maps (n, patches, width) to the same shape."""
        x = x + self.over_patches(self.patch_norm(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.over_channels(self.channel_norm(x))


@dx.dataclass
class Mixer(dx.Layer):
    """An MLP-mixer over 16 patches of 2x2 pixels."""

    width: int = dx.field(default=32, ge=1, help="channels of a patch")
    hidden: int = dx.field(default=64, ge=1, help="size inside of the blocks")
    depth: int = dx.field(default=2, ge=1, help="how many blocks there are")
    classes: int = dx.field(default=10)
    embed = dx.Linear(2 * 2, width)
    blocks = dx.repeat(depth, MixerBlock(16, width, hidden))
    norm = dx.LayerNorm(width)
    head = dx.Linear(width, classes)

    def __call__(self, images: Float[Array, "n 8 8 1"]) -> Float[Array, "n {self.classes}"]:
        """Maps images (n, 8, 8, 1) to logits (n, classes)."""
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = self.embed(patches)
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(self.norm(x), axis=1))


Model = CNN | MLP | Mixer
