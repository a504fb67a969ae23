"""
A layer of your own
===================

How to write a layer in NumPy: an activation, and a layer with parameters. Both work in every network.

A layer maps moments to moments. ``forward`` takes the means ``mu`` and the variances ``var`` of its input, (samples,
units), and gives those of its output. An activation also gives its Jacobian J. Here sin z is linearised around the mean
m of z ~ N(m, s): mean sin m, variance J² s, J = cos m. The next layer applies this Jacobian, so an activation has no
backward pass. ``var`` is None if inputs are known exactly, and ``jcb`` is None if no activation precedes this one;
otherwise the Jacobians are multiplied.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, nn, plot
from pytagi_ddp.likelihoods import Gaussian


class Sine(nn.Activation):
    name = "Sine"

    def forward(self, x, saved):
        slope = np.cos(x.mu)
        var = np.zeros_like(x.mu) if x.var is None else slope**2 * x.var
        return nn.State(np.sin(x.mu), var, slope if x.jcb is None else slope * x.jcb)


# %%
# A layer with parameters has a prior and a backward pass. This one multiplies each unit z ~ N(m, s) by an uncertain
# factor w ~ N(µ, σ²), independent of it: mean µ m, variance (µ² + σ²) s + σ² m².
#
# ``backward`` gets the deltas dm and ds of the output. For each parameter it sums A dm and A² ds over the batch, where
# A is the derivative of the output by the parameter: here m. (With ``saved.accumulate`` it adds to the sums of the
# passes before. Otherwise it does not read them: they may be infinite, after a step that was refused.) For the input it
# gives A dm and A² ds, where A is the derivative by the input, µ, times the Jacobian of the activation in front. What
# it needs of ``forward`` is kept in attributes of ``saved``.


class Scale(nn.BaseLayer):
    name = "Scale"

    def build(self, shape):
        shape = super().build(shape)  # from now on, `in_shape` is known
        if self.parameters is None:
            self.init_weight_bias()
        return shape

    def init_weight_bias(self):
        self.set_prior(np.ones(self.in_shape.size), np.full(self.in_shape.size, 0.1))

    def forward(self, x, saved):
        w, saved.x = self.parameters.w, x
        var = 0 if x.var is None else x.var
        return nn.State(w.mu * x.mu, (w.mu**2 + w.var) * var + w.var * x.mu**2)

    def backward(self, delta, saved):
        w, x = self.parameters.w, saved.x
        g, h = (x.mu * delta.mu).sum(0), (x.mu**2 * delta.var).sum(0)
        w.delta_mu_sum[:] = w.delta_mu_sum + g if saved.accumulate else g
        w.delta_var_sum[:] = w.delta_var_sum + h if saved.accumulate else h
        slope = w.mu if x.jcb is None else w.mu * x.jcb
        return nn.Delta(slope * delta.mu, slope**2 * delta.var)


# %%
# The moments are checked by sampling. Then a network with both layers learns a periodic function.

pytagi_ddp.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 100), Sine(), Scale(), nn.Linear(100, 1))
scale = net.layers[2]
rng = np.random.default_rng(0)
mu, var = rng.normal(size=(1, 100)), rng.uniform(0.1, 1, (1, 100))
samples = rng.normal(mu, np.sqrt(var), (20_000, 100)) * rng.normal(scale.mu_w, np.sqrt(scale.var_w), (20_000, 100))
exact = np.asarray(scale.forward(nn.State(mu, var), nn.Saved(scale)).var)
error = np.abs(samples.var(0) / exact - 1).max()
print(f"variances of {len(samples)} samples differ by at most {100 * error:.0f} %")

x, places = rng.uniform(-2, 2, 400), np.linspace(-2, 2, 200)
y, truth = (np.sin(3 * where) + 0.5 * where for where in (x, places))
y += rng.normal(0, 0.1, x.shape)
net.fit(x, y, Gaussian(0.1), epochs=30, batch_size=10, evidence=None)
mean, variance = net.predict(places)
rmse = metric.rmse(mean, truth)
print(f"RMSE {rmse:.3f}, with noise of 0.1 on each observation")

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(x, y, ".", color="0.7", markersize=3, label="observations")
plot.band(axes, places, mean, variance + 0.1**2, "mean, 2 std of an observation")
axes.legend()
plt.show()

# %%
# The mean follows the curve. The band is too wide: it contains all observations, and should contain 95 % of them.
