"""
Images, drawn again and made up
===============================

How to train an autoencoder, two networks in a row, and what its error bars say. An encoder of convolutions compresses
each image to eight numbers, its *code*; a decoder of transposed convolutions (`ConvTranspose2d`) draws the image again,
each pixel with a standard deviation. Then the decoder draws images that never were. The images are handwritten digits.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import pytagi_ddp
from pytagi_ddp import metric
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Conv2d, ConvTranspose2d, Linear, MixtureReLU, Sequential

images = load_digits().images[:, None] / 16
images, new = images[:1500], images[1500:]

pytagi_ddp.manual_seed(0)
halve = Conv2d(1, 32, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=8, in_height=8)
double = ConvTranspose2d(32, 1, kernel_size=3, stride=2, padding=1, padding_type=2, in_width=4, in_height=4)
encoder = Sequential(halve, MixtureReLU(), Linear(512, 64), MixtureReLU(), Linear(64, 8))
decoder = Sequential(Linear(8, 64), MixtureReLU(), Linear(64, 512), MixtureReLU(), double)

# %%
# The two networks learn as one: the deltas at the decoder's input go back through the encoder. The standard deviation
# with which a pixel is observed falls from epoch to epoch.

decoder.input_state_update = True  # its backward pass continues in the encoder
rng = np.random.default_rng(0)
for epoch in range(10):
    likelihood = Gaussian(max(0.05, 0.3 * 0.8**epoch))
    for rows in np.array_split(rng.permutation(len(images)), len(images) // 16):
        encoder(images[rows])
        decoder(encoder.output_z_buffer)
        likelihood.observe(decoder, images[rows])
        decoder.backward()
        encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
        encoder.backward()
        decoder.step()
        encoder.step()

# %%
# From top to bottom: images that were not learnt, what the decoder draws, and the standard deviation. Then the decoder
# gets codes of no image: codes on the straight line between those of two images, and codes drawn from the normal
# distribution that fits the codes of all images.

code, code_var = encoder.predict(new)
mu, var = decoder.predict(code, var_x=code_var)
share = np.linspace(0, 1, 8)[:, None]
between, _ = decoder.predict((1 - share) * code[0] + share * code[3])
codes, _ = encoder.predict(images)
made_up, _ = decoder.predict(rng.multivariate_normal(codes.mean(0), np.cov(codes.T), 8))

pictures = {"image": new, "drawn again": mu, "std": np.sqrt(var), "between two": between, "made up": made_up}
figure, grid = plt.subplots(5, 8, figsize=(9, 6), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for panels, (name, row) in zip(grid, pictures.items(), strict=True):
    for axes, image in zip(panels, row, strict=False):
        axes.imshow(image[0], vmin=0, vmax=row[:8].max() if name == "std" else 1, cmap="gray")
    panels[0].set_ylabel(name)
plt.show()

print(f"error {metric.rmse(mu, new):.3f}, standard deviation {np.sqrt(var.mean()):.3f}")

# %%
# The standard deviation is the uncertainty about the mean of a pixel. It is several times smaller than the error: eight
# numbers cannot hold an image, and what is lost in them is noise to the decoder. Of the made-up images, some are
# digits, and others lie between digits, as one normal distribution does not fit the codes of ten kinds.
