"""
Images, drawn again and made up
===============================

How to train an autoencoder, two networks in a row, and what its error bars say. An encoder of convolutions compresses
each image to eight numbers, its *code*; a decoder of transposed convolutions (`ConvTranspose2d`) draws the image again,
each pixel with a standard deviation. Then the decoder draws images that never were.
"""

# %%
# The images: 1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn. 297 of them are not learnt.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import pytagi_ddp
from pytagi_ddp.nn import Conv2d, ConvTranspose2d, Linear, MixtureReLU, OutputUpdater, Sequential

images = (load_digits().images[:, None] / 16).astype(np.float32)
images, new = images[:1500], images[1500:]

pytagi_ddp.manual_seed(0)
encoder = Sequential(
    Conv2d(1, 32, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=8, in_height=8),
    MixtureReLU(),
    Linear(32 * 4 * 4, 64),
    MixtureReLU(),
    Linear(64, 8),
)
decoder = Sequential(
    Linear(8, 64),
    MixtureReLU(),
    Linear(64, 32 * 4 * 4),
    MixtureReLU(),
    ConvTranspose2d(32, 1, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=4, in_height=4),
)

# %%
# The two networks learn as one: the deltas at the decoder's input go back through the encoder. `sigma_v`, the standard
# deviation with which a pixel is observed, falls from epoch to epoch.

decoder.input_state_update = True  # its backward pass continues in the encoder
updater, rng = OutputUpdater(decoder.device), np.random.default_rng(0)
for epoch in range(10):
    sigma_v = max(0.05, 0.3 * 0.8**epoch)
    for rows in np.array_split(rng.permutation(len(images)), len(images) // 16):
        encoder(images[rows])
        decoder(encoder.output_z_buffer)
        updater.update(decoder.output_z_buffer, images[rows], sigma_v**2, decoder.input_delta_z_buffer)
        decoder.backward()
        encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
        encoder.backward()
        decoder.step()
        encoder.step()

# %%
# From top to bottom: images that were not learnt, what the decoder draws, the error, and the standard deviation. The
# last two rows have scales of their own.


def show(rows):
    """A row of images for each name."""
    figure, grid = plt.subplots(len(rows), 8, figsize=(9, 1.15 * len(rows)), layout="constrained")
    for panels, (name, row) in zip(grid, rows.items(), strict=True):
        style = {"cmap": "magma", "vmax": row.max()} if name in ("error", "std") else {"cmap": "gray", "vmax": 1}
        for axes, image in zip(panels, row, strict=True):
            shown = axes.imshow(image[0], vmin=0, **style)
            axes.set(xticks=[], yticks=[])
        panels[0].set_ylabel(name)
        figure.colorbar(shown, ax=list(panels), pad=0.01)
    plt.show()


code, code_var = encoder.predict(new)
mu, var = decoder.predict(code, var_x=code_var)
error, std = np.abs(mu - new), np.sqrt(var)
show({"image": new[:8], "drawn again": mu[:8], "error": error[:8], "std": std[:8]})

# %%
# The standard deviation is the uncertainty about the mean of a pixel. It is several times smaller than the error: eight
# numbers cannot hold an image, and what is lost in them is noise to the decoder, whose standard deviation the program
# gives as ``sigma_v``. Both together are still smaller than the error:

print(f"error {np.sqrt(np.mean(error**2)):.3f}, standard deviation {np.sqrt(var.mean()):.3f}")
print(f"with sigma_v {np.sqrt(var.mean() + sigma_v**2):.3f}")
print(f"correlation of both over pixels {np.corrcoef(error.ravel(), std.ravel())[0, 1]:.2f}")

# %%
# Now the decoder gets codes of no image: codes on the straight line between those of two images, and codes drawn from
# the normal distribution that fits the codes of all images.

share = np.linspace(0, 1, 8)[:, None]
between, _ = decoder.predict((1 - share) * code[0] + share * code[5])
codes, _ = encoder.predict(images)
made_up, made_up_var = decoder.predict(rng.multivariate_normal(codes.mean(0), np.cov(codes.T), 8))
show({"between two": between, "made up": made_up, "std": np.sqrt(made_up_var)})

# %%
# Some are digits, and others lie between digits, as one normal distribution does not fit the codes of ten kinds. The
# standard deviation does not reliably tell them apart.
