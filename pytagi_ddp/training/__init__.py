"""The training loop for every kind of network, on one process and on many ranks, with callbacks.

    trainer = Trainer(net, Categorical(10), epochs=20, callbacks=[EarlyStopping(patience=10), Log("runs/a")])
    history = trainer.fit((x, labels), (x_validation, labels_validation))
    trainer.evaluate((x_test, labels_test))
    trainer.predict(x_test).probabilities

`net.fit(x, y, likelihood)` does the same in one call.
"""

from pytagi_ddp.training.callback import Callback, CallbackError
from pytagi_ddp.training.checkpoints import Checkpoints
from pytagi_ddp.training.early_stopping import EarlyStopping
from pytagi_ddp.training.log import Log
from pytagi_ddp.training.progress import Progress
from pytagi_ddp.training.trackers import Tracker
from pytagi_ddp.training.trainer import Trainer

__all__ = ["Callback", "CallbackError", "Checkpoints", "EarlyStopping", "Log", "Progress", "Tracker", "Trainer"]
