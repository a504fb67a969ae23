"""
Images of another kind
======================

How to notice inputs that are unlike the training data: two scores of doubt overlook some of them, and the density of
the network's features none. A network that has learnt ten digits gets other images: digits whose pixels are shuffled,
that lie on their side or are too bright, and noise. It has to answer with one of ten classes. Does it say that it
should not be believed?
"""

# %%
# The digits come with scikit-learn: 1,797 images of 8 x 8 pixels from 0 to 16. Three of the four kinds of foreign
# images are made of those for the test.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp import metric
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import FeatureDensity, Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, x_new, label, label_new = train_test_split(x, label, test_size=500, random_state=0)
mean, std = x.mean(), x.std()
rng = np.random.default_rng(0)

foreign = {
    "digits": x_new,
    "shuffled pixels": rng.permuted(x_new, axis=1),
    "turned by 90°": np.rot90(x_new.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64),
    "too bright": 3 * x_new,
    "noise": rng.uniform(0, 16, x_new.shape),
}

# %%
# A network with a softmax; the page *Four heads for digits* compares it with others.

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), Linear(100, 10))
likelihood = Categorical(10)
net.fit((x - mean) / std, label, likelihood, epochs=20, batch_size=16)

# %%
# Three scores for each image. The entropy of the class probabilities is 0 if the network is sure of one class, and
# ln 10 = 2.3 if all are equally likely. The variance of the outputs says how little the weights know about this input.
# A `FeatureDensity` fits a Gaussian to the features of each class, the numbers in front of each layer, and says how far
# an image is from the nearest one.

density = FeatureDensity(net).fit((x - mean) / std, label)


def scores_of(images):
    """Entropy of the class probabilities, mean variance of the outputs, and distance of the features."""
    images = (images - mean) / std
    mu, var = net.predict(images)
    return metric.entropy(likelihood.prediction(mu, var).probabilities), var.mean(1), density.distance(images)


scores = {name: scores_of(images) for name, images in foreign.items()}
for name, of_images in list(scores.items())[1:]:
    found = [metric.auroc(*pair) for pair in zip(scores["digits"], of_images, strict=True)]
    print("{}: AUROC {:.3f} by entropy, {:.3f} by variance, {:.3f} by distance".format(name, *found))

figure, axes = plt.subplot_mosaic(
    [
        [score for score in ("entropy", "variance", "distance") for _ in range(5)],
        [name for name in foreign for _ in range(3)],
    ],
    figsize=(12, 6),
    height_ratios=(3, 1),
    layout="constrained",
)
for number, (name, (entropy, variance, distance)) in enumerate(scores.items()):
    for panel, values in (("entropy", entropy), ("variance", np.log10(variance)), ("distance", np.log10(distance))):
        axes[panel].hist(values, 40, density=True, histtype="stepfilled", alpha=0.4, color=f"C{number}", label=name)
    axes[name].imshow(np.hstack([*foreign[name][1:3].reshape(2, 8, 8)]), cmap="gray", vmin=0, vmax=16)
    axes[name].set(xticks=[], yticks=[])
    axes[name].set_title(name, color=f"C{number}", fontsize="medium")
axes["entropy"].set(xlabel="entropy of the class probabilities", yticks=[], xlim=(0, np.log(10)))
axes["variance"].set(xlabel="log10 of the outputs' variance", yticks=[])
axes["distance"].set(xlabel="log10 of the distance of the features", yticks=[])
axes["entropy"].legend(fontsize="small")
plt.show()

# %%
# AUROC is the probability that a foreign image has a larger score than a digit: 1 if the score tells all of them apart,
# 0.5 if it says nothing, and 0 if it is the wrong way round. Entropy recognises what lies between the classes: shuffled
# pixels and noise. It says little about digits on their side, which the network takes for other digits, and less than
# the others about those that are three times as bright: they lie on the same side of a boundary as before, only farther
# away. The variance notices only these. It grows with the size of the features, and images that the network has not
# learnt make small ones. The distance tells all four kinds from digits: features that are small, large or in unusual
# combinations are all unlikely.
#
# No score is a guarantee: images that are foreign in another way may escape all three.
