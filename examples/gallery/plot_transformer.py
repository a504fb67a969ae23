"""
A transformer that repeats, and knows what it did not see
=========================================================

How to train a transformer on sequences of tokens. It has to say at every position which token stood two places before.
Nothing in a token tells where it stands: attention finds it by the angles by which positions turn queries and keys. The
sequences are cut out of longer ones, so what the first two positions ask for was never seen. There any token is as
likely as another, and the network must not be sure of one.
"""

# %%
# 16 random sequences of 12 tokens in each batch, of 8 different tokens. The labels are the tokens two places before.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import models
from pytagi_ddp.likelihoods import Categorical

LAG, STEPS, TOKENS, BATCHES = 2, 12, 8, 600
generator = np.random.default_rng(0)


def make_sequences(count):
    """(count, STEPS) tokens, and those that stood LAG places before each."""
    whole = generator.integers(TOKENS, size=(count, LAG + STEPS))
    return whole[:, LAG:], whole[:, :-LAG]


# %%
# `models.transformer` is a decoder: each position sees itself and those before it. The likelihood takes a label for
# each position. Every 50 batches, the network is tried on 400 new sequences.

likelihood = Categorical(TOKENS)
pytagi_ddp.manual_seed(0)
net = models.transformer(TOKENS, STEPS, outputs=TOKENS)
test, truth = make_sequences(400)


def probabilities(x):
    """(sequences, STEPS, TOKENS): probability of each token."""
    return likelihood.prediction(*net.predict(x)).probabilities.reshape(*x.shape, TOKENS)


seen, accuracies, largest = [], [], []
for batch in range(1, BATCHES + 1):
    x, labels = make_sequences(16)
    net(x)
    likelihood.observe(net, labels)
    net.backward()
    net.step()
    if batch % 50 == 0:
        found = probabilities(test)
        seen.append(batch)
        accuracies.append((found.argmax(-1) == truth)[:, LAG:].mean())
        largest.append(found[:, :LAG].max(-1).mean())
print(f"accuracy where the token was seen: {accuracies[-1]:.3f}")
print(f"largest probability where it was not: {largest[-1]:.0%}; {1 / TOKENS:.1%} would be right")

# %%
# Left: the progress. Right: the probabilities for one sequence. At the first two positions they are spread over all
# tokens.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.plot(seen, accuracies, ".-", label="accuracy where the token was seen")
left.plot(seen, largest, ".-", label="largest probability where it was not")
left.axhline(1 / TOKENS, color="0.7", linestyle="--", label="chance")
left.set(xlabel="batch", ylim=(0, 1.02))
left.legend(loc="center right")
image = right.imshow(probabilities(test[:1])[0].T, vmin=0, vmax=1, cmap="Blues")
right.plot(test[0], "k.", label="token here")
right.plot(truth[0], "s", color="C1", mfc="none", ms=11, label="token two places before")
right.set(xlabel="position", ylabel="token")
right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
figure.colorbar(image, ax=right, label="probability")
plt.show()
