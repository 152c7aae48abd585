"""Trains in two gloo processes: `python -m tests.training.ddp_worker OUT`. Imports once, then forks."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from metatok.data.loader import Batch
from metatok.errors import ConfigError
from metatok.training import LoopSettings, pretrain, train

from .conftest import META, build, uneven_batch
from .test_loop import OPTIM, Logs, corpus

STEPS = 4
SETTINGS = LoopSettings(micro_batch_size=2, log_every=1, checkpoint_every=2)


def lopsided(step: int) -> Batch:
    """Rows 0-2 hold no meta token, rows 3-5 do, and count far more targets."""
    whole = uneven_batch(step)
    tokens = whole.tokens.clone()
    tokens[:3] = torch.where(tokens[:3] == META, 1, tokens[:3])
    return Batch(tokens, whole.targets, build().meta_positions(tokens), torch.arange(len(tokens)))


def share(batch: Batch, rank: int) -> Batch:
    rows = slice(3 * rank, 3 * rank + 3)
    return Batch(
        batch.tokens[rows],
        batch.targets[rows],
        build().meta_positions(batch.tokens[rows]),
        batch.indices[rows],
    )


def work(rank: int, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    result: dict[str, object] = {}
    for name in ("gpt2_ape", "meta_rope"):
        logs: Logs = []
        model = build(name)
        pretrain(
            model,
            corpus(),
            batch_size=6,
            steps=STEPS,
            optim=OPTIM,
            settings=SETTINGS,
            on_log=lambda s, m, logs=logs: logs.append((s, m)),
        )
        result[name] = {"weights": model.state_dict(), "logs": logs}
    logs, model = [], build("meta_ape")
    train(
        model,
        lambda step: share(lopsided(step), rank),
        steps=STEPS,
        optim=OPTIM,
        settings=SETTINGS,
        on_log=lambda s, m: logs.append((s, m)),
    )
    result["lopsided"] = {"weights": model.state_dict(), "logs": logs}
    try:
        pretrain(build(), corpus(), batch_size=5, steps=1, optim=OPTIM, settings=SETTINGS)
    except ConfigError as error:
        result["refused"] = str(error)
    torch.save(result, out / f"rank-{rank}.pt")
    dist.destroy_process_group()


def main(out: Path) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(1, out)
            code = 0
        finally:
            os._exit(code)
    try:
        work(0, out)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
