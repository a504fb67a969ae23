"""
Three days ahead, and how sure
==============================

How to forecast many steps, with intervals that hold. The series is a season of 24 steps, a day, with weather on top. Of
the weather, nine tenths are left at the next step. So it cannot be foretold for long: the uncertainty of the forecast
grows during the first steps, and then stays as it is.
"""

import matplotlib.pyplot as plt
import numpy as np

from pytagi_ddp.forecasting import Forecaster

DAY, AHEAD, DAYS = 24, 72, 100
rng, hour = np.random.default_rng(0), np.arange(DAYS * DAY)
angle = 2 * np.pi * hour / DAY
weather = np.zeros(hour.size)
for t in hour[1:]:
    weather[t] = 0.9 * weather[t - 1] + rng.normal(0, 0.2)
y = np.sin(angle) + 0.4 * np.cos(2 * angle) + weather + rng.normal(0, 0.1, hour.size)

# %%
# A ``Forecaster`` learns all 72 steps at once, from the last three days. It finds out by itself, on stretches of time
# that it holds back, which network forecasts best, and how large the errors of each step are.
#
# The band of the upper picture holds each step by itself. A *path* goes through all steps: the errors of neighbouring
# steps are alike, as weather lasts. Paths answer questions about several steps, such as how high the highest value of
# the next day will be.

forecaster = Forecaster(AHEAD, season=DAY, n_networks=4, epochs=20, random_state=0).fit(y[:-AHEAD])
forecast = forecaster.predict()

figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
forecast.plot(upper, truth=y[-AHEAD:], past=2 * AHEAD)
lower.plot(hour[-3 * AHEAD : -AHEAD], y[-3 * AHEAD : -AHEAD], ".-", color="0.4", markersize=3, linewidth=0.8)
lower.plot(forecast.steps, forecast.sample(5, seed=0).T, linewidth=0.8)
lower.set(xlabel="hour", ylabel="value", title="five paths that the next days may take")
upper.set(ylabel="value", title="forecast of 72 steps")
upper.legend(loc="upper left", ncols=4, fontsize="small")
plt.show()

low, high = np.quantile(forecast.sample(2000, seed=0)[:, :DAY].max(1), [0.05, 0.95])
print(f"highest value of the first day: {low:.2f} to {high:.2f} in 90 % of the paths")

# %%
# Is that right? A backtest forecasts from many origins in the last part of the series, with a forecaster that has
# learnt only what was before: the error of some steps, and how many observations 90 % intervals hold.

found = forecaster.backtest(y, start=0.6, stride=6)
rmse, inside = found.rmse("step"), found.coverage(0.9, "step")
for step in (1, 4, 24, 72):
    print(f"step {step}: RMSE {rmse[step - 1]:.3f}, 90 % intervals hold {inside[step - 1]:.0%}")
