"""
Regression on a table, with intervals that hold
===============================================

How to get predictions with error bars from a table of numbers by `TAGIRegressor`, and how to check the error bars. The
table comes with scikit-learn: ten measurements of 442 patients, and how far their diabetes had progressed a year later.

The estimator trains ten to twenty networks (5 folds x 2 to 4 seeds) and predicts by their mean. It takes care of
scaling, noise and the number of layers.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from pytagi_ddp import metric
from pytagi_ddp.estimators import TAGIRegressor

x, y = load_diabetes(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, test_size=100, random_state=0)
regressor = TAGIRegressor(random_state=0).fit(x, y)

mean = regressor.predict(x_test)
print(f"RMSE {metric.rmse(mean, y_test):.1f}, of a standard deviation of {y_test.std():.1f}")
print(f"mean log-likelihood {regressor.log_likelihood(x_test, y_test).mean():.2f}")

# %%
# An interval of 90 % should hold 90 % of the observations, and be as narrow as possible. The noise was learnt from
# predictions of samples that the networks had not seen, since errors of samples that they had learnt are too small.

levels = np.linspace(0.05, 0.95, 19)
prediction = regressor.predict_distribution(x_test)
held = [prediction.coverage(y_test, level) for level in levels]
low, high = prediction.interval(0.9)
order, place = np.argsort(y_test), np.arange(len(y_test))
print(f"{prediction.coverage(y_test, 0.9):.0%} of the observations are in their intervals of 90 %")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(2, 1))
left.vlines(place, low[order], high[order], color="C0", alpha=0.5, label="interval of 90 %")
left.plot(place, mean[order], "_", color="C0", label="mean")
left.plot(place, y_test[order], ".", color="black", label="observed")
left.set(xlabel="sample, sorted", ylabel="target")
left.legend(fontsize="small", loc="upper left")
right.plot([0, 1], [0, 1], "--", color="gray")
right.plot(levels, held, ".-")
right.set(xlabel="probability of the interval", ylabel="share of observations in it", xlim=(0, 1), ylim=(0, 1))
plt.show()

# %%
# On the right, points on the dashed line mean that intervals hold what they should. With 100 observations these shares
# have a standard error of up to 0.05.
