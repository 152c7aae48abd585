"""Running cells: every kind, failures, kills in the middle, and two DDP processes."""

import hashlib
import multiprocessing as mp
import shutil
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from metatok.data.corpus import CorpusConfig
from metatok.experiment import (
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Home,
    Ledger,
    Pretrain,
    Probe,
    RateDistortion,
    RunRecord,
)
from metatok.experiment.design import Context, Metrics, RunSettings
from metatok.experiment.execution import Progress
from metatok.model import Intervention

from . import children, tiny

NewCell = Callable[..., Pretrain]


def record_of(ledger: Ledger, cell: Cell, status: str | None = "FINISHED") -> RunRecord:
    """The only run of the cell."""
    (found,) = [r for r in ledger.records(cell.kind, None) if r.fingerprint == cell.fingerprint]
    assert status in (None, found.status)
    return found


def curve(ledger: Ledger, cell: Cell, name: str) -> list[tuple[int, float]]:
    history = ledger.client.get_metric_history(record_of(ledger, cell, None).run_id, name)
    return [(point.step, point.value) for point in history]


def final(ledger: Ledger, cell: Cell) -> dict[str, float]:
    """The final numbers; with the curves' last values, the speed left out."""
    metrics = dict(record_of(ledger, cell).metrics)
    return {name: value for name, value in metrics.items() if name != "tokens_per_second"}


class Undisturbed:
    """Runs cells in one go, in a home of their own and past the ledger."""

    def __init__(self, home: Home, settings: RunSettings = tiny.SETTINGS) -> None:
        self.home, self.settings = home, settings
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.metrics: Metrics = {}

    def run(self, cell: Cell) -> None:
        self.curves = {}
        outcome = cell.run(Context(self.home, self.settings, on_log=self._log))
        last = {name: points[-1][1] for name, points in self.curves.items()}
        del last["tokens_per_second"]
        self.metrics = last | outcome.metrics

    def _log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append((step, value))

    def weights(self, cell: Any) -> Path:
        return Path(self.home.checkpoints(cell.fingerprint), f"step-{cell.steps}", "model.safetensors")


def test_every_kind_runs_and_records_its_numbers(ledger: Ledger, home: Home, new_cell: NewCell) -> None:
    base = new_cell()
    extended = Extend(base=base, scale=2, batch_size=2, steps=4, validation_sequences=2, optim=tiny.OPTIM)
    tuned = tiny.finetune(base)
    looks = [Probe(base=tuned, analysis=a, eval_length=64) for a in ("sharpness", "residual", "attention")]
    ablated = Ablate(base=tuned, intervention=Intervention(zero_embedding=True))
    bottleneck = {"base": base, "beta": 0.1, "max_tokens": 96, "n_examples": 4, "latent_dim": 4, "epochs": 2}
    point = RateDistortion(
        site="meta",
        task="parity",
        curriculum=tuned.curriculum,
        **bottleneck,
    )
    speed = Efficiency(model=base.model, batch_size=1, prompt_tokens=16, new_tokens=2, repeats=2)
    cells: list[Cell] = [base, extended, tuned, ablated, point, *looks, speed]
    news: list[Progress] = []
    assert tiny.run(cells, ledger, home, news.append) == ["finished"] * len(cells)
    assert [p.cell for p in news if p.status == "finished"] == cells
    assert tiny.run(cells, ledger, home) == ["already_finished"] * len(cells)
    assert ledger.missing(cells) == []

    steps = list(range(tiny.SETTINGS.log_every, base.steps + 1, tiny.SETTINGS.log_every))
    for cell in (base, tuned):
        assert [step for step, _ in curve(ledger, cell, "loss")] == steps
        told = [p.step for p in news if p.cell == cell and p.status == "running" and p.metrics]
        assert told == steps
    parameters = sum(w.numel() for w in load_file(weights_of(ledger, base)).values())
    metrics = record_of(ledger, base).metrics
    assert metrics["parameters"] == parameters
    assert 4 < metrics["validation_loss"] < 7  # near ln(300) = 5.7
    assert metrics["n_validation_tokens"] > 0

    scores = record_of(ledger, tuned)
    records = ledger.table(scores, "records").to_pandas()
    for length, group in records.groupby("eval_length"):
        assert scores.metrics[f"n/{length}"] == len(group) == 12
        assert scores.metrics[f"exact_match/{length}"] == group["exact"].mean()
        share = group["correct_tokens"].sum() / group["answer_tokens"].sum()
        assert scores.metrics[f"token_accuracy/{length}"] == pytest.approx(share)
        assert (group["prompt_tokens"] > length / 2).all()
        assert (group["prompt_tokens"] + group["answer_tokens"] < length).all()
    again = ledger.table(record_of(ledger, ablated), "records").to_pandas()
    assert (again[["eval_length", "index"]] == records[["eval_length", "index"]]).all(axis=None)

    assert [step for step, _ in curve(ledger, point, "train_rate")] == [1, 2]
    assert {"rate", "distortion", "n"} <= set(record_of(ledger, point).metrics)
    assert record_of(ledger, looks[0]).metrics["n_meta_tokens"] == 2 * 12
    tables = {p.name for look in looks for p in artifacts(ledger, look).glob("*.parquet")}
    assert tables == {
        f"{n}.parquet"
        for n in (
            *("sharpness", "attention_rows", "boost_effect"),
            *("residual_map", "residual_profile", "attention_map"),
        )
    }
    seen = record_of(ledger, looks[0])
    rows, boosts = (ledger.table(seen, n).to_pandas() for n in ("attention_rows", "boost_effect"))
    assert len(rows) == 12 * base.model.n_layer * base.model.n_head
    assert seen.metrics["premise_rate"] == boosts.premise.mean()
    for layer, entropy in rows.groupby("layer").entropy.mean().items():
        assert seen.metrics[f"attention_entropy/layer_{layer}"] == pytest.approx(entropy)
    assert {"rate_se", "distortion_se"} <= set(record_of(ledger, point).metrics)
    timed = record_of(ledger, speed).metrics
    assert timed["n_text"] == 16
    assert any(name.startswith("step_ratio/dense_mask") for name in timed)


def artifacts(ledger: Ledger, cell: Cell) -> Path:
    return Path(record_of(ledger, cell, None).artifact_uri.removeprefix("file://"))


def weights_of(ledger: Ledger, cell: Cell) -> Path:
    return Path(ledger.checkpoint_uri(cell.fingerprint), "model.safetensors")


def test_finished_training_leaves_weights_and_nothing_else(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    cell = new_cell()
    assert tiny.run([cell], ledger, home) == ["finished"]
    folder = Path(home.checkpoints(cell.fingerprint))
    assert [path.name for path in folder.iterdir()] == ["step-8"]
    assert weights_of(ledger, cell).parent == folder / "step-8"
    assert sorted(path.name for path in (folder / "step-8").iterdir()) == [
        "manifest.json",
        "model.safetensors",
    ]


def test_a_process_that_died_after_the_last_checkpoint_leaves_no_older_one(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    cell = new_cell()
    tiny.run([cell], ledger, home)
    folder = Path(home.checkpoints(cell.fingerprint))
    shutil.copytree(folder / "step-8", folder / "step-4")  # it was to go when step 8 was there
    ledger.client.set_terminated(record_of(ledger, cell).run_id, "FAILED")
    assert tiny.run([cell], ledger, home) == ["finished"]
    assert [path.name for path in folder.iterdir()] == ["step-8"]


def test_a_failure_stops_only_what_builds_on_it(
    ledger: Ledger, home: Home, new_cell: NewCell, tmp_path: Path
) -> None:
    text = tmp_path / "corpus"
    bad = new_cell(corpus=CorpusConfig(source="files", paths=(str(text),), validation_fraction=0.3))
    on_bad = Extend(base=bad, scale=2, batch_size=2, steps=2, validation_sequences=1)
    deeper = tiny.finetune(on_bad, n_test=2, steps=2)
    good = new_cell(steps=2)
    cells: list[Cell] = [bad, on_bad, good, deeper]
    news: list[Progress] = []
    assert tiny.run(cells, ledger, home, news.append) == ["failed", "skipped", "finished", "skipped"]
    failed = record_of(ledger, bad, "FAILED")
    assert "paths" in failed.tags["error"] or str(text) in failed.tags["error"]
    trace = (artifacts(ledger, bad) / "traceback.txt").read_text()
    assert trace.startswith("Traceback")
    assert trace.strip().endswith(failed.tags["error"])
    (told,) = [p for p in news if p.status == "failed"]
    assert told.cell == bad
    assert told.error in trace
    assert ledger.missing(cells) == [bad, on_bad, deeper]

    text.mkdir()
    speeches = (f"Speech {i} of many, about peace and trade and roads. " * 40 for i in range(12))
    for i, speech in enumerate(speeches):
        (text / f"{i}.txt").write_text(speech)
    assert tiny.run(cells, ledger, home) == ["finished", "finished", "already_finished", "finished"]
    found = record_of(ledger, bad)
    assert found.run_id == failed.run_id
    assert "error" not in found.tags
    assert ledger.missing(cells) == []


def test_a_base_without_weights_fails_its_cell_with_the_way_out(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    tuned = tiny.finetune(new_cell())
    assert tiny.run([tuned], ledger, home) == ["failed"]
    assert "delete its run in the ledger" in record_of(ledger, tuned, "FAILED").tags["error"]


def test_a_stopped_notebook_leaves_its_cell_to_others(ledger: Ledger, home: Home, new_cell: NewCell) -> None:
    cell = new_cell()

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.run([cell], ledger, home, stop)
    assert record_of(ledger, cell, "KILLED").status == "KILLED"
    assert tiny.run([cell], ledger, home) == ["finished"]
    assert [step for step, _ in curve(ledger, cell, "loss")] == [2, 4, 6, 8]


def test_killed_in_the_middle_and_run_again_gives_the_undisturbed_numbers(
    ledger: Ledger, home: Home, fresh_home: Home, new_cell: NewCell, processes: ForkServerContext
) -> None:
    base = new_cell(steps=12)
    tuned = tiny.finetune(base, steps=12)
    cells: list[Cell] = [base, tuned]
    for kind in ("pretrain", "finetune"):
        # Checkpoints lie at 4 and 8, log lines every 2.
        arguments = (ledger, home, cells, kind, 10)
        child: Any = processes.Process(target=children.run_until, args=arguments, daemon=True)
        child.start()
        child.join(60)
        assert child.exitcode == -9
    assert record_of(ledger, base).status == "FINISHED"
    assert record_of(ledger, tuned, "RUNNING").status == "RUNNING"
    news: list[Progress] = []
    assert tiny.run(cells, ledger, home, news.append) == ["already_finished", "finished"]
    assert [p.step for p in news if p.metrics and p.status == "running"] == [10, 12]  # from the checkpoint

    undisturbed = Undisturbed(fresh_home)
    for cell in cells:
        undisturbed.run(cell)
        assert final(ledger, cell) == undisturbed.metrics
        for name in ("loss", "grad_norm", "learning_rate"):
            assert curve(ledger, cell, name) == undisturbed.curves[name]
        assert [step for step, _ in curve(ledger, cell, "loss")] == [2, 4, 6, 8, 10, 12]
        assert digest(weights_of(ledger, cell)) == digest(undisturbed.weights(cell))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_resources_and_intervals_do_not_change_results(
    ledger: Ledger, home: Home, fresh_home: Home, new_cell: NewCell
) -> None:
    cell = new_cell()
    settings = RunSettings(micro_batch_size=3, eval_batch_size=5, log_every=4, checkpoint_every=4)
    assert tiny.run([cell], ledger, home) == ["finished"]
    other = Undisturbed(fresh_home, settings)
    other.run(cell)
    assert other.metrics["validation_loss"] == pytest.approx(final(ledger, cell)["validation_loss"], abs=1e-5)


def test_two_ranks_write_one_run_with_the_numbers_of_one_process(
    ledger: Ledger,
    home: Home,
    fresh_home: Home,
    new_cell: NewCell,
    processes: ForkServerContext,
    tmp_path: Path,
) -> None:
    base = new_cell()
    failing = new_cell(corpus=CorpusConfig(source="files", paths=(str(tmp_path / "nothing"),)))
    extended = Extend(base=base, scale=2, batch_size=2, steps=2, validation_sequences=2)
    cells: list[Cell] = [base, extended, failing]
    ends = [mp.Pipe(duplex=False) for _ in range(2)]
    for rank, (_, send) in enumerate(ends):
        arguments = (rank, tmp_path, ledger, home, cells, send)
        ranks: Any = processes.Process(target=children.run_as_rank, args=arguments, daemon=True)
        ranks.start()
    answers = [receive.recv() if receive.poll(90) else None for receive, _ in ends]
    assert answers[0] is not None
    # Every rank hears the same news, since a report to the trainer is a barrier.
    assert answers[0] == answers[1]
    statuses, _, error = answers[0]
    assert statuses == ["finished", "finished"]
    assert "nothing" in error  # a cell that raises ends the group: no rank may wait for one that failed alone
    alone = Undisturbed(fresh_home)
    for cell in (base, extended):
        alone.run(cell)
        wanted = {name: pytest.approx(value, abs=1e-4) for name, value in alone.metrics.items()}
        assert final(ledger, cell) == wanted
    assert record_of(ledger, failing, "FAILED").status == "FAILED"


def test_ranks_that_find_different_checkpoints_say_so(
    ledger: Ledger,
    home: Home,
    fresh_home: Home,
    new_cell: NewCell,
    processes: ForkServerContext,
    tmp_path: Path,
) -> None:
    cell = new_cell()
    child: Any = processes.Process(target=children.run_until, args=(ledger, home, [cell], cell.kind, 6))
    child.start()
    child.join(60)
    receive, send = mp.Pipe(duplex=False)
    for rank, where in enumerate((home, fresh_home)):  # the second's machine has another folder there
        arguments = (rank, tmp_path, ledger, where, [cell], send if rank else mp.Pipe()[1])
        ranks: Any = processes.Process(target=children.run_as_rank, args=arguments, daemon=True)
        ranks.start()
    assert receive.poll(90)
    *_, error = receive.recv()
    assert "rank 1 finds the checkpoint of step None" in error
    assert "rank 0 that of 4: METATOK_HOME must be" in error


def test_a_cell_whose_run_was_deleted_is_done_afresh(
    ledger: Ledger, home: Home, new_cell: NewCell, caplog: pytest.LogCaptureFixture
) -> None:
    cell = new_cell()
    tiny.run([cell], ledger, home)
    before = final(ledger, cell)
    ledger.client.delete_run(record_of(ledger, cell).run_id)
    assert tiny.run([cell], ledger, home) == ["finished"]
    assert [step for step, _ in curve(ledger, cell, "loss")] == [2, 4, 6, 8]
    assert final(ledger, cell) == before
    (aside,) = Path(home.root, "checkpoints").glob(f"{cell.fingerprint}-*")
    assert [path.name for path in aside.iterdir()] == ["step-8"]
    assert str(aside) in caplog.text


def test_a_frozen_model_is_loaded_once_for_cells_in_a_row(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    first, second = new_cell(steps=2), new_cell(steps=2)
    tiny.run([first, second], ledger, home)
    context = Context(home, tiny.SETTINGS)
    model = first.frozen_model(context)
    assert first.frozen_model(context) is model
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert second.frozen_model(context) is not model
    assert first.frozen_model(context) is not model  # only the last one is kept
