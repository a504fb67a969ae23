"""
Images of another kind
======================

How to notice inputs that are unlike the training data. A network that has learnt images of ten digits gets others:
digits whose pixels are shuffled, that lie on their side or are too bright, and noise. Does it say that its answer
should not be believed? Two scores of doubt overlook some of the images, and the density of the network's features
overlooks none.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp import metric
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import FeatureDensity, Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, digits, label, _ = train_test_split(x, label, test_size=500, random_state=0)
mean, std = x.mean(), x.std()
rng = np.random.default_rng(0)
foreign = {
    "shuffled pixels": rng.permuted(digits, axis=1),
    "turned by 90°": np.rot90(digits.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64),
    "too bright": 3 * digits,
    "noise": rng.uniform(0, 16, digits.shape),
}

# %%
# Three scores for each image. The entropy of the class probabilities is 0 if the network is sure of one class. The
# variance of the outputs says how little the weights know about this input. A `FeatureDensity` fits a Gaussian to the
# features of each class, the numbers in front of each layer, and says how far an image is from the nearest one.

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), Linear(100, 10))
likelihood = Categorical(10)
net.fit((x - mean) / std, label, likelihood, epochs=20, batch_size=16)
density = FeatureDensity(net).fit((x - mean) / std, label)


def scores_of(images):
    """Entropy, and logarithms of variance and distance."""
    images = (images - mean) / std
    mu, var = net.predict(images)
    p = likelihood.prediction(mu, var).probabilities
    return metric.entropy(p), np.log10(var.mean(1)), np.log10(density.distance(images))


SCORES = "entropy", "log variance", "log distance"
figure, grid = plt.subplots(4, 4, figsize=(12, 8), layout="constrained", width_ratios=(1, 2, 2, 2))
for (picture, *panels), (name, images) in zip(grid, foreign.items(), strict=True):
    picture.imshow(images[1].reshape(8, 8), cmap="gray", vmin=0, vmax=16)
    picture.set(title=name, xticks=[], yticks=[])
    for panel, score, usual, found in zip(panels, SCORES, scores_of(digits), scores_of(images), strict=True):
        title = f"{score}: AUROC {metric.auroc(usual, found):.3f}"
        print(f"{name}, {title}")
        panel.hist([usual, found], 40, histtype="stepfilled", alpha=0.5, label=["digits", name])
        panel.set(title=title, yticks=[])
    panels[-1].legend(fontsize="small")
plt.show()

# %%
# AUROC is the probability that a foreign image has a larger score than a digit: 1 if the score tells all of them apart,
# 0.5 if it says nothing, and 0 if it is the wrong way round. Entropy recognises what lies between the classes: shuffled
# pixels and noise. It says little about digits on their side, which the network takes for other digits. The variance
# notices only images that are too bright: it grows with the size of the features, and the other images make small ones.
# The distance tells all four kinds from digits, as features that are small, large or combined unusually are unlikely.
