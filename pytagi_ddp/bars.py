"""Progress bars."""

from tqdm import tqdm


class Bar(tqdm):
    """tqdm's bar, without its thread, which outlives the bar."""

    monitor_interval = 0
