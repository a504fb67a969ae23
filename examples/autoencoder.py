"""Compress images of shapes to a few numbers and draw them again: `python -m examples.autoencoder --plot images.png`.

An encoder of convolutions and a decoder of transposed ones are two networks that learn as one: the decoder's deltas go
on through the encoder. Each pixel that is drawn has a variance: what the decoder is not sure of.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import pytagi_ddp
from examples.figures import draw
from pytagi_ddp.nn import Conv2d, ConvTranspose2d, Linear, MixtureReLU, OutputUpdater, Sequential

SIDE = 16  # pixels


def make_images(count: int, seed: int) -> np.ndarray:
    """(count, 1, SIDE, SIDE): discs, squares and crosses of several sizes at several places, 0 to 1."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    images = np.empty((count, 1, SIDE, SIDE), np.float32)
    for image in images:
        y, x = rng.uniform(5, SIDE - 6, 2)
        size, kind = rng.uniform(2.5, 4.5), rng.integers(3)
        dy, dx = np.abs(rows - y), np.abs(columns - x)
        distance = (np.hypot(dy, dx), np.maximum(dy, dx), np.minimum(dy, dx) + 1.5 + 0.2 * np.maximum(dy, dx))[kind]
        image[0] = np.clip(size - distance, 0, 1) if kind < 2 else np.clip(3.5 - distance, 0, 1) * (dy + dx < 2 * size)
    return images


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


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, and returns the root mean square error of pixels of images that were not learnt."""
    parser = argparse.ArgumentParser("autoencoder", description=__doc__.partition(":")[0])
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--codes", type=int, default=8, help="numbers that an image is compressed to (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw images, what comes back, and its standard deviation")
    args = parser.parse_args(argv)
    pytagi_ddp.manual_seed(args.seed)
    train, test = make_images(args.images, args.seed), make_images(500, args.seed + 1)
    encoder, decoder = make_networks(args.codes)
    updater, generator = OutputUpdater(decoder.device), np.random.default_rng(args.seed)
    error = float("inf")
    for epoch in range(args.epochs):
        sigma_v = max(0.05, 0.3 * 0.8**epoch)
        for part in np.array_split(generator.permutation(len(train)), -(-len(train) // args.batch_size)):
            encoder(train[part])
            decoder(encoder.output_z_buffer)
            updater.update(decoder.output_z_buffer, train[part], sigma_v**2, decoder.input_delta_z_buffer)
            decoder.backward()
            encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
            encoder.backward()
            decoder.step()
            encoder.step()
        drawn = reconstruct(encoder, decoder, test)[0]
        error = float(np.sqrt(np.mean((drawn - test) ** 2)))
        print(
            f"epoch {epoch + 1}/{args.epochs}: RMSE of a pixel {error:.3f} on images that were not learnt", flush=True
        )

    def paint(figure) -> None:
        shown = test[:8]
        mu, var = reconstruct(encoder, decoder, shown)
        rows = {"image": shown, "drawn again": mu, "standard deviation": np.sqrt(var)}
        for r, (name, images) in enumerate(rows.items()):
            for k, image in enumerate(images):
                axes = figure.add_subplot(3, 8, 8 * r + k + 1, xticks=[], yticks=[])
                axes.imshow(image[0], cmap="gray" if r < 2 else "magma", vmin=0, vmax=1 if r < 2 else None)
                if k == 0:
                    axes.set_ylabel(name)

    draw(args.plot, paint, (9, 4))
    return error


def reconstruct(encoder: Sequential, decoder: Sequential, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the pixels that come back."""
    mu, var = encoder.predict(images)
    return decoder.predict(mu, var_x=var)


if __name__ == "__main__":
    main()
