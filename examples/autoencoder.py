"""Compress images of shapes to a few numbers and draw them again: `python -m examples.autoencoder --plot images.png`.

An encoder of convolutions and a decoder of transposed ones are two networks that learn as one: the decoder's deltas go
on through the encoder. Each pixel that is drawn has a variance: what the decoder is not sure of. The decoder also draws
what nobody has seen: images between two, and images of codes that are drawn at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import pytagi_ddp
from examples.figures import draw
from examples.option_types import at_least, natural, picture, positive_int
from pytagi_ddp.nn import Conv2d, ConvTranspose2d, Linear, MixtureReLU, OutputUpdater, Sequential

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 16  # pixels


def make_images(count: int, seed: int) -> np.ndarray:
    """(count, 1, SIDE, SIDE): discs, squares and crosses of several sizes at several places, 0 to 1."""
    return make_shapes(count, seed)[0]


def make_shapes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`make_images`, and what each of them shows: 0 a disc, 1 a square, 2 a cross."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    images, kinds = np.empty((count, 1, SIDE, SIDE), np.float32), np.empty(count, int)
    for k, image in enumerate(images):
        y, x = rng.uniform(5, SIDE - 6, 2)
        size, kind = rng.uniform(2.5, 4.5), rng.integers(3)
        kinds[k] = kind
        dy, dx = np.abs(rows - y), np.abs(columns - x)
        distance = (np.hypot(dy, dx), np.maximum(dy, dx), np.minimum(dy, dx) + 1.5 + 0.2 * np.maximum(dy, dx))[kind]
        image[0] = np.clip(size - distance, 0, 1) if kind < 2 else np.clip(3.5 - distance, 0, 1) * (dy + dx < 2 * size)
    return images, kinds


def make_networks(codes: int) -> tuple[Sequential, Sequential]:
    """Encoder to `codes` numbers, and decoder."""
    encoder = Sequential(
        Conv2d(1, 16, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=SIDE, in_height=SIDE),
        MixtureReLU(),
        Conv2d(16, 32, kernel_size=3, stride=2, padding=1, padding_type=2),
        MixtureReLU(),
        Linear(32 * 4 * 4, 64),
        MixtureReLU(),
        Linear(64, codes),
    )
    decoder = Sequential(
        Linear(codes, 64),
        MixtureReLU(),
        Linear(64, 32 * 4 * 4),
        MixtureReLU(),
        ConvTranspose2d(32, 16, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=4, in_height=4),
        MixtureReLU(),
        ConvTranspose2d(16, 1, kernel_size=3, stride=2, padding=1, padding_type=2),
    )
    decoder.input_state_update = True  # its backward pass goes on in the encoder
    return encoder, decoder


def train(
    encoder: Sequential, decoder: Sequential, images: np.ndarray, epochs: int, batch_size: int = 16, seed: int = 0
) -> Iterator[int]:
    """Learns to reconstruct images; yields the number of epochs so far after each epoch."""
    updater, generator = OutputUpdater(decoder.device), np.random.default_rng(seed)
    for epoch in range(epochs):
        sigma_v = max(0.05, 0.3 * 0.8**epoch)
        for part in np.array_split(generator.permutation(len(images)), -(-len(images) // batch_size)):
            encoder(images[part])
            decoder(encoder.output_z_buffer)
            updater.update(decoder.output_z_buffer, images[part], sigma_v**2, decoder.input_delta_z_buffer)
            decoder.backward()
            encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
            encoder.backward()
            decoder.step()
            encoder.step()
        yield epoch + 1


def reconstruct(encoder: Sequential, decoder: Sequential, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the pixels of the reconstructed images."""
    mu, var = encoder.predict(images)
    return decoder.predict(mu, var_x=var)


def between(encoder: Sequential, decoder: Sequential, images: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of `count` images on the straight line between the codes of two images, both included."""
    first, last = encoder.predict(images)[0]
    share = np.linspace(0, 1, count)[:, None]
    return decoder.predict((1 - share) * first + share * last)


def generate(
    encoder: Sequential, decoder: Sequential, images: np.ndarray, count: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of images of new codes: of the normal distribution that fits the codes of these images."""
    codes = encoder.predict(images)[0]
    drawn = np.random.default_rng(seed).multivariate_normal(codes.mean(0), np.cov(codes.T), count)
    return decoder.predict(drawn)


def paint_rows(figure: Figure, rows: Mapping[str, np.ndarray]) -> None:
    """A row of images for each name; those of `error` and `std` in colours, each row with one scale."""
    width = max(map(len, rows.values()))
    grid = figure.subplots(len(rows), width, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for panels, (name, images) in zip(grid, rows.items(), strict=True):
        in_colours = name in ("error", "std")
        limit = float(images.max()) if in_colours else 1
        for axes, image in zip(panels, images, strict=False):
            shown = axes.imshow(image[0], cmap="magma" if in_colours else "gray", vmin=0, vmax=limit)
        panels[0].set_ylabel(name)
        if in_colours:
            figure.colorbar(shown, ax=list(panels), pad=0.01)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, and returns the root mean square error of pixels of images that were not learnt."""
    parser = argparse.ArgumentParser("autoencoder", description=__doc__.partition(":")[0])
    parser.add_argument("--images", type=at_least(2), default=3000, help="to learn from (3000)")
    parser.add_argument("--epochs", type=positive_int, default=15, help="passes over the data (15)")
    parser.add_argument("--batch-size", type=positive_int, default=16, help="samples of a step (16)")
    parser.add_argument("--codes", type=positive_int, default=8, help="numbers that an image is compressed to (8)")
    parser.add_argument("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    parser.add_argument(
        "--plot", type=picture, metavar="FILE", help="draw images, what comes back, its std, and images made up"
    )
    args = parser.parse_args(argv)
    pytagi_ddp.manual_seed(args.seed)
    images, test = make_images(args.images, args.seed), make_images(500, args.seed + 1)
    encoder, decoder = make_networks(args.codes)
    error = float("inf")
    for epoch in train(encoder, decoder, images, args.epochs, args.batch_size, args.seed):
        drawn = reconstruct(encoder, decoder, test)[0]
        error = float(np.sqrt(np.mean((drawn - test) ** 2)))
        print(f"epoch {epoch}/{args.epochs}: RMSE of a pixel {error:.3f} on images that were not learnt", flush=True)

    def paint(figure: Figure) -> None:
        mu, var = reconstruct(encoder, decoder, test[:8])
        rows = {"image": test[:8], "drawn again": mu, "std": np.sqrt(var)}
        rows["between two"] = between(encoder, decoder, test[[0, 5]], 8)[0]
        rows["made up"] = generate(encoder, decoder, images, 8, args.seed)[0]
        paint_rows(figure, rows)

    draw(args.plot, paint, (9, 6))
    return error


if __name__ == "__main__":
    main()
