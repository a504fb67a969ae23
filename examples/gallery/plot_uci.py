"""
Regression on a table, with intervals that hold
===============================================

How to get predictions with error bars from a table of numbers by `TAGIRegressor`, and how to check the
error bars. The table is "yacht" (the resistance of 308 sailing yachts, from the sizes of their hulls), one of the nine
UCI sets on which such methods are compared. If it is not on this machine, a made-up table takes its place.
"""

# %%
# The first of the 20 standard splits: nine tenths of the rows to learn from, one tenth to test on.

import matplotlib.pyplot as plt
import numpy as np

from pytagi_ddp.data import DatasetNotFoundError, RegressionSplits, load_uci
from pytagi_ddp.estimators import TAGIRegressor


def made_up():
    """Noise grows with what is predicted, as that of measurements often does."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (308, 6))
    function = np.exp(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    test = np.zeros((1, 308), bool)
    test[0, rng.permutation(308)[:31]] = True
    return RegressionSplits("a table that is made up", x, function + 0.1 * function * rng.normal(size=308), test)


try:
    data = load_uci("yacht", download=False)
except DatasetNotFoundError:
    data = made_up()
x, y, x_test, y_test = data.split(0)
print(f"{data.name}: {len(y)} samples with {x.shape[1]} features, {len(y_test)} to test on")

# %%
# The estimator trains ten networks (5 folds x 2 seeds) and predicts by their mean. It takes care of scaling, noise and
# the number of layers.

regressor = TAGIRegressor(random_state=0).fit(x, y)
mean = regressor.predict(x_test)
print(f"RMSE {np.sqrt(np.mean((mean - y_test) ** 2)):.3f}, of a standard deviation of {y_test.std():.3f}")
print(f"mean log-likelihood {regressor.log_likelihood(x_test, y_test).mean():.3f}")

# %%
# A 90 % interval should hold 90 % of the observations, and be as narrow as possible. The noise was learnt from
# predictions of samples that the networks had not seen, since errors of samples that they had learnt are too small. It
# depends on the inputs.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
low, high = regressor.predict_interval(x_test, 0.9)
order = np.argsort(y_test)
place = np.arange(len(order))
left.vlines(place, low[order], high[order], color="C0", alpha=0.5, label="interval of 90 %")
left.plot(place, mean[order], "_", color="C0", label="mean")
left.plot(place, y_test[order], ".", color="black", label="observed")
left.set(xlabel="sample, sorted", ylabel="target")
left.legend(fontsize="small", loc="upper left")

wanted = np.linspace(0.05, 0.95, 19)
intervals = [regressor.predict_interval(x_test, coverage) for coverage in wanted]
held = [np.mean((low <= y_test) & (y_test <= high)) for low, high in intervals]
right.plot([0, 1], [0, 1], "--", color="gray")
right.plot(wanted, held, ".-")
right.set(xlabel="probability of the interval", ylabel="share of observations in it", xlim=(0, 1), ylim=(0, 1))
plt.show()

# %%
# On the right, points on the dashed line mean that intervals hold what they should. 31 observations are few, so these
# shares have a standard error of up to 0.09. `python -m benchmarks.quality uci` measures all nine sets on all splits.
