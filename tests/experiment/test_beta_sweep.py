"""The betas and sites of one frozen model share its load and its pass over the examples."""

from collections.abc import Callable

import pytest

from metatok.experiment import Home, Pretrain, RateDistortion
from metatok.experiment.design import Context
from metatok.model import GPT
from metatok.tasks import Curriculum

from . import tiny


def test_cells_that_share_give_what_they_give_alone(
    home: Home, new_cell: Callable[..., Pretrain], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_cell(steps=2)
    base.run(Context(home, tiny.SETTINGS))
    cells = [
        RateDistortion(
            base=base,
            site=site,
            beta=beta,
            task="parity",
            curriculum=Curriculum.tiny(),
            max_tokens=96,
            n_examples=4,
            latent_dim=4,
            epochs=2,
        )
        for beta in (0.1, 1.0)
        for site in ("meta", "last_non_meta")
    ]
    passes = []
    whole = GPT.hidden

    def hidden(self: GPT, *arguments: object, **options: object) -> object:
        passes.append(self)
        return whole(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(GPT, "hidden", hidden)
    together = Context(home, tiny.SETTINGS)
    shared = [cell.run(together).metrics for cell in cells]
    assert len(passes) == 1
    assert shared == [cell.run(Context(home, tiny.SETTINGS)).metrics for cell in cells]
    assert len(passes) == 1 + len(cells)
