"""
Images, drawn again and made up
===============================

How to train an autoencoder, two networks in a row, and what its error bars say. An encoder of convolutions compresses
each image to eight numbers, its *code*; a decoder of transposed convolutions (`ConvTranspose2d`) draws the image again,
each pixel with a standard deviation. Then the decoder draws images that never were.
"""

# %%
# The two networks learn as one: the deltas at the decoder's input go back through the encoder.
# ``examples/autoencoder.py`` has both networks and the loop, and makes the images: discs, squares and crosses of
# several sizes at several places.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.autoencoder import between, generate, make_images, make_networks, paint_rows, reconstruct, train

images, new = make_images(1000, seed=0), make_images(200, seed=1)
pytagi_ddp.manual_seed(0)
encoder, decoder = make_networks(codes=8)
for _epoch in train(encoder, decoder, images, epochs=8):
    pass

# %%
# From top to bottom: images that were not learnt, what the decoder draws, the error, and the standard deviation. The
# last two rows have scales of their own.

mu, var = reconstruct(encoder, decoder, new)
error, std = np.abs(mu - new), np.sqrt(var)
figure = plt.figure(figsize=(9, 4.6), layout="constrained")
paint_rows(figure, {"image": new[:8], "drawn again": mu[:8], "error": error[:8], "std": std[:8]})
plt.show()

# %%
# The network doubts pixels in and around the shape, where most errors are. But its standard deviation is several times
# smaller than the error. It is the uncertainty about the mean of a pixel. Eight numbers cannot hold an image, and what
# is lost in them is noise to the decoder, whose standard deviation the program gives as ``sigma_v`` (0.06 at the end).
# Both together are still smaller than the error:

print(f"error {np.sqrt(np.mean(error**2)):.3f}, standard deviation {np.sqrt(var.mean()):.3f}")
print(f"with sigma_v {np.sqrt(var.mean() + 0.063**2):.3f}")
print(f"correlation of both over pixels {np.corrcoef(error.ravel(), std.ravel())[0, 1]:.2f}")

# %%
# Now the decoder gets codes of no image: codes on the straight line between those of two images, and codes drawn from
# the normal distribution that fits the codes of all images.

made_up, made_up_var = generate(encoder, decoder, images, 8)
figure = plt.figure(figsize=(9, 3.6), layout="constrained")
rows = {"between two": between(encoder, decoder, new[[0, 5]], 8)[0], "made up": made_up, "std": np.sqrt(made_up_var)}
paint_rows(figure, rows)
plt.show()

# %%
# Some are shapes, and others lie between shapes, as one normal distribution does not fit the codes of three kinds. The
# standard deviation does not reliably tell them apart.
