"""Sum and average of the ranks' deltas where the exact posterior is known: `python -m benchmarks.aggregation`.

A linear model of 20 weights, 4 ranks with 4 samples each per step, every sample seen once: medians over the weights of
variance / exact variance, and of the distance of the means in exact standard deviations; mean of 5 seeds. The ranks are
one process with their 16 samples: that is what the sum is, and the average is its deltas divided by 4.
"""

import numpy as np

import pytagi_ddp
from pytagi_ddp.nn import Linear, OutputUpdater, Sequential

RANKS, SAMPLES, WEIGHTS, NOISE, SEEDS = 4, 4, 20, 0.5, 5


def distance(average: bool, steps: int, seed: int) -> tuple[float, float]:
    """(variance / exact, |mean - exact| / exact standard deviation) after `steps` steps, medians over the weights."""
    rng, batch = np.random.default_rng(seed), RANKS * SAMPLES
    x = rng.normal(size=(batch * steps, WEIGHTS))
    y = x @ rng.normal(size=WEIGHTS) + NOISE * rng.normal(size=len(x))
    pytagi_ddp.manual_seed(seed)
    net, updater = Sequential(Linear(WEIGHTS, 1, bias=False)), OutputUpdater("cpu")
    mean, variance = net.arena.theta.astype(np.float64)
    covariance = np.linalg.inv(np.diag(1 / variance) + x.T @ x / NOISE**2)
    exact, spread = covariance @ (mean / variance + x.T @ y / NOISE**2), np.diag(covariance)
    for rows in np.split(np.arange(len(x)), steps):
        net(x[rows])
        updater.update(net.output_z_buffer, y[rows], np.full(batch, NOISE**2), net.input_delta_z_buffer)
        net.backward()
        net.arena.step(SAMPLES if average else batch, 1 / RANKS if average else 1.0)
    mu, var = net.arena.theta
    return float(np.median(var / spread)), float(np.median(np.abs(mu - exact) / np.sqrt(spread)))


def main() -> None:
    for steps in (25, 100):
        for average in (False, True):
            found = np.mean([distance(average, steps, seed) for seed in range(SEEDS)], axis=0)
            name = "average" if average else "sum"
            print(f"{steps:>4} steps, {name:<7}: variance {found[0]:.2f} of the exact, means {found[1]:.1f} away")


if __name__ == "__main__":
    main()
