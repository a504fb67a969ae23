"""
An attack, and who notices it
=============================

How an image can be changed until the network sees another class, and whether the network's uncertainty reveals the
attack (it does not). The attack is inference: the network gets a wrong class as an observation, and says which image
would explain that. Source: Nguyen & Goulet (2022), "Analytically tractable hidden-states inference in Bayesian neural
networks", JMLR 23.

A classifier learns handwritten digits of 8 x 8 pixels. The images that it gets right are attacked.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.metric import auroc, entropy
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, new, label, truth = train_test_split((x / 16).astype(np.float32), label, test_size=500, random_state=0)
likelihood = Categorical(10)
pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 10))
net.fit(x, label, likelihood, epochs=20, batch_size=16)
right = net.predict(new)[0].argmax(1) == truth
new, truth = new[right], truth[right]

# %%
# The prior of each pixel is N(m, 0.3²), where m is its value in the image, from 0 to 1. We claim to have observed the
# next class five times. A step of the inference treats the network as linear, so there are 20 steps with a 20th of the
# evidence each. For comparison, *noise* changes the images by as much: the same changes, of other pixels.

net.input_state_update = True
wanted = (truth + 1) % 10
attacked, var = new, np.full_like(new, 0.3**2)
for _step in range(20):
    net(attacked, var)
    likelihood.observe(net, wanted, weight=5 / 20)
    net.backward()
    delta_mu, delta_var = (deltas.reshape(new.shape) for deltas in net.get_input_states())
    attacked, var = attacked + var * delta_mu, var + var**2 * delta_var

noisy = new + np.random.default_rng(0).permuted(attacked - new, axis=1)

# %%
# Does the network notice? Detected by 80 % means: with a probability of 80 %, a changed image has a larger standard
# deviation of the outputs, or entropy of the class probabilities, than an unchanged one. 50 % is chance.

usual: tuple = ()  # doubt about images that are not changed
picked = [np.flatnonzero(truth == digit)[0] for digit in range(10)]
figure, grid = plt.subplots(3, 10, figsize=(12, 4.4), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for panels, (name, x) in zip(grid, {"image": new, "noise": noisy, "attack": attacked}.items(), strict=True):
    mu, var = net.predict(x)
    p = likelihood.prediction(mu, var).probabilities
    doubt = np.sqrt(var.mean(1)), entropy(p)
    usual = usual or doubt
    by_std, by_entropy = (auroc(*pair) for pair in zip(usual, doubt, strict=True))
    turned = np.mean(p.argmax(1) == wanted)
    print(f"{name}: {turned:.1%} are the wanted class; detected by std {by_std:.0%}, by entropy {by_entropy:.0%}")
    for panel, k in zip(panels, picked, strict=True):
        panel.imshow(x[k].reshape(8, 8), cmap="gray", vmin=0, vmax=1)
        panel.set_title(f"{p[k].argmax()}: {p[k].max():.0%}", fontsize="medium")
    panels[0].set_ylabel(name)
plt.show()

# %%
# The attack turns all images into the wanted class, and noise of the same size hardly any. Neither measure protects
# against it. The standard deviation is even smaller than before: to the network, the attacked images are more familiar.
