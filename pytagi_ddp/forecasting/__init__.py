"""Forecasts of time series, many steps ahead, with error bars.

    forecaster = Forecaster(horizon=24).fit(y)
    forecast = forecaster.predict()
    forecast.mean, forecast.interval(0.9)

They need scikit-learn (`pip install 'pytagi-ddp[sklearn]'`), which is loaded with this module.
"""

import importlib.util

if importlib.util.find_spec("sklearn") is None:
    raise ImportError(
        "pytagi_ddp.forecasting needs scikit-learn, which is not installed: pip install 'pytagi-ddp[sklearn]'"
    )

from pytagi_ddp.forecasting.backtest import Backtest
from pytagi_ddp.forecasting.forecast import Forecast
from pytagi_ddp.forecasting.forecaster import Forecaster

__all__ = ["Backtest", "Forecast", "Forecaster"]
