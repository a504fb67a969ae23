"""
Images, drawn again and made up
===============================

An encoder of convolutions presses images of shapes into eight numbers, and a decoder of transposed convolutions
(`ConvTranspose2d`) draws them again, each pixel with a standard deviation. Then it draws what nobody has seen.
"""

# %%
# Two networks learn as one: the decoder's deltas go on through the encoder. ``examples/autoencoder.py`` makes discs,
# squares and crosses of several sizes at several places, and has both networks and the loop.

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
# Images that were not learnt, what comes back, how far it is off, and the standard deviation. The last two rows have
# scales of their own.

mu, var = reconstruct(encoder, decoder, new)
error, std = np.abs(mu - new), np.sqrt(var)
figure = plt.figure(figsize=(9, 4.6), layout="constrained")
paint_rows(figure, {"image": new[:8], "drawn again": mu[:8], "error": error[:8], "std": std[:8]})
plt.show()

# %%
# The network doubts pixels in and around the shape, where most errors are. But it says too little: the standard
# deviation is that of what it draws, a few times smaller than the error. Eight numbers cannot hold an image; what is
# lost there is noise to the decoder, and its standard deviation is what ``sigma_v`` says (0.06 at the end).

print(f"error {np.sqrt(np.mean(error**2)):.3f}, standard deviation {np.sqrt(var.mean()):.3f}")
print(f"with sigma_v {np.sqrt(var.mean() + 0.063**2):.3f}")
print(f"correlation of both over pixels {np.corrcoef(error.ravel(), std.ravel())[0, 1]:.2f}")

# %%
# Now what it draws where no image was: codes on the straight line between those of two images, and codes drawn from the
# normal distribution that fits the codes of all.

made_up, made_up_var = generate(encoder, decoder, images, 8)
figure = plt.figure(figsize=(9, 3.6), layout="constrained")
rows = {"between two": between(encoder, decoder, new[[0, 5]], 8)[0], "made up": made_up, "std": np.sqrt(made_up_var)}
paint_rows(figure, rows)
plt.show()

# %%
# Some are shapes, and some are what lies between shapes: one normal distribution does not fit codes of three kinds. The
# standard deviation does not tell them apart for sure.
