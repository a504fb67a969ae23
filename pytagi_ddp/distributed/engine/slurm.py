"""The batch script for Slurm of ``python -m pytagi_ddp.launch --write-slurm job.sh``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

SIGNAL_SECONDS = 120  # before the time limit

SCRIPT = """#!/bin/bash
{directives}
# Stops {seconds} s before the time limit with a checkpoint, goes back into the queue, and goes on from there. For that,
# the program uses Checkpoints(folder, on_signal=True, resume=True) of a Trainer, or StopOnSignal and CheckpointManager.

cd "$SLURM_SUBMIT_DIR" || exit 1
export PYTAGI_DDP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}}
export NUMBA_CACHE_DIR=${{NUMBA_CACHE_DIR:-$PWD/cache}}  # compiled code; all nodes have to reach it
mkdir -p logs "$NUMBA_CACHE_DIR"

signals=0
trap 'signals=$((signals + 1)); kill -USR1 "$ranks"' USR1
srun --mpi={interface} --output={log}"$SLURM_JOB_ID"-%t.log --open-mode=append {program} &
ranks=$!
before=-1
while [ "$before" != "$signals" ]; do  # a signal ends the wait, and not the ranks
    before=$signals
    wait "$ranks"
    code=$?
done
if [ "$signals" -gt 0 ] && [ "$code" -eq 0 ]; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def batch_script(options: Sequence[str], program: Sequence[str], interface: str, name: str) -> str:
    """The text of a script for sbatch.

    Args:
        options: options of sbatch, such as "-N", "4". One for the signal replaces that of the script.
        program: the command of the ranks. interface: that of srun, ``"pmi2"`` or ``"pmix"``. name: of the log files.
    """
    lines: list[str] = []
    for word in options:
        if word.startswith("-"):
            option, sign, value = word.partition("=")
            lines.append(f"{option}={shlex.quote(value)}" if sign else shlex.quote(word))
        elif lines and lines[-1].startswith("-") and not {" ", "="} & set(lines[-1]):
            lines[-1] += ("=" if lines[-1].startswith("--") else " ") + shlex.quote(word)
        else:
            raise ValueError(f"{word!r} is not an option of sbatch, and belongs to none")
    defaults = {"--job-name": name, "--signal": f"B:USR1@{SIGNAL_SECONDS}", "--open-mode": "append"}
    given = {line.partition("=")[0] for line in lines} | {"--job-name" for word in options if word.startswith("-J")}
    lines += [f"{option}={shlex.quote(value)}" for option, value in defaults.items() if option not in given]
    if broken := next((line for line in lines if "\n" in line), None):
        raise ValueError(f"{broken!r:.200} has a line break, and the rest would be a command of the script")
    return SCRIPT.format(
        directives="\n".join(f"#SBATCH {line}" for line in [*lines, "--requeue"]),
        seconds=SIGNAL_SECONDS,
        interface=interface,
        log=shlex.quote(f"logs/{name.replace('%', '%%')}-"),  # % is the sign of srun
        program=shlex.join(program),
    )


def script_name(program: Sequence[str]) -> str:
    """The name of a job: that of its script, or of its module."""
    return program[1].rpartition(".")[2] if program[0] == "-m" else Path(program[0]).stem
