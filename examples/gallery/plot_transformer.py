"""
A transformer that repeats, and what it did not see
===================================================

How to train a transformer on sequences of tokens. It has to say at every position which token stood two places before.
Nothing in a token tells where it stands: attention finds it by the angles by which positions turn queries and keys. The
sequences are cut out of longer ones, so what the first two positions ask for was never seen. There any of the 8 tokens
is as likely as another, and the network should not be sure of one.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import models
from pytagi_ddp.likelihoods import Categorical

TOKENS, STEPS = 8, 12
rng = np.random.default_rng(0)


def make_sequences(count):
    """(count, STEPS) tokens, and those that stood two places before each."""
    whole = rng.integers(TOKENS, size=(count, 2 + STEPS))
    return whole[:, 2:], whole[:, :-2]


# %%
# `models.transformer` is a decoder: each position sees itself and those before it. The likelihood takes a label for
# each position. Every 50 batches of 16 sequences, the network is tried on 400 new ones.

likelihood = Categorical(TOKENS)
pytagi_ddp.manual_seed(0)
net = models.transformer(TOKENS, STEPS, outputs=TOKENS)
test, truth = make_sequences(400)

progress = []
for batch in range(1, 601):
    x, labels = make_sequences(16)
    net(x)
    likelihood.observe(net, labels)
    net.backward()
    net.step()
    if batch % 50 == 0:
        p = likelihood.predict(net, test).probabilities.reshape(400, STEPS, TOKENS)
        progress.append((batch, (p.argmax(-1) == truth)[:, 2:].mean(), p[:, :2].max(-1).mean()))
batches, accuracy, largest = zip(*progress, strict=True)
print(f"accuracy where the token was seen: {accuracy[-1]:.3f}")
print(f"largest probability where it was not: {largest[-1]:.0%}; {1 / TOKENS:.1%} would be right")

# %%
# Right: the probabilities for one sequence. At the first position they are spread over several tokens. At the second
# one the network often repeats the only token before it, and is too sure: its largest probability at these two
# positions falls while it learns (left), and is still far above chance.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.plot(batches, accuracy, ".-", label="accuracy where the token was seen")
left.plot(batches, largest, ".-", label="largest probability where it was not")
left.axhline(1 / TOKENS, color="0.7", linestyle="--", label="chance")
left.set(xlabel="batch", ylim=(0, 1.02))
left.legend(loc=(0.3, 0.62), fontsize="small")
figure.colorbar(right.imshow(p[0].T, vmin=0, vmax=1, cmap="Blues"), ax=right, label="probability")
right.plot(test[0], "k.", label="token here")
right.plot(truth[0], "s", color="C1", mfc="none", ms=11, label="token two places before")
right.set(xlabel="position", ylabel="token")
right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plt.show()
