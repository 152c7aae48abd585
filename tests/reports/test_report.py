"""The exhibits of a small ledger whose results are known in closed form."""

import math
import re

import pytest
from scipy.stats import t as student
from statsmodels.stats.proportion import proportion_confint

from metatok.experiment import Ledger, get_preset
from reports.exhibits.exhibit import DASH, OVER_CONTEXT, Entry
from reports.rendering.render import latex, markdown
from reports.source.comparisons import ablation
from reports.source.results import Key, Results
from reports.source.runs import read_runs, select

from .conftest import Small
from .ledgers import N

TABLES = [f"table_{n:02d}" for n in range(1, 18)]
BEYOND = ["claims", "controls", "steps_to_90"]
FIGURES = [f"figure_{n}" for n in range(1, 4)]


def row(frame, **labels):
    for name, value in labels.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


def test_every_exhibit_has_its_files(small: Small):
    wanted = {f"{name}.{kind}" for name in TABLES for kind in ("md", "csv", "tex")}
    wanted |= {f"{name}.{kind}" for name in BEYOND for kind in ("md", "csv", "tex")}
    wanted |= {f"{name}.{kind}" for name in FIGURES for kind in ("csv", "png", "svg")}
    assert wanted | {"report.html", "scores.csv"} == {path.name for path in small.out.iterdir()}
    assert all((small.out / name).stat().st_size > 20 for name in wanted)
    assert [e.name for e in small.report.exhibits] == ["claims", *TABLES, *FIGURES, "controls", "steps_to_90"]


def test_seeds_are_pooled_by_examples(small: Small):
    found = row(small.csv("table_07"), model="meta_rope", train_length=256, eval_length=256)
    assert (found.n, found.seeds) == (2 * N, 2)
    assert found.value == 30 / 80
    assert (found.low, found.high) == pytest.approx(proportion_confint(30, 80, method="wilson"))
    # Seeds have 10 and 20 of 40: mean 0.375, standard deviation 0.25 / sqrt 2.
    half = student.ppf(0.975, 1) * 0.125
    assert (found.seed_mean, found.seed_high - found.seed_mean) == pytest.approx((0.375, half))
    assert found.majority_share == 0.1


def test_a_cell_shows_number_interval_n_and_seeds(small: Small):
    text = (small.out / "table_07.md").read_text()
    low, high = (100 * x for x in proportion_confint(30, 80, method="wilson"))
    assert f"| 37.5 [{low:.1f}, {high:.1f}]; n=80; 2 seeds: mean 37.5, t ± 158.8 |" in text
    low, high = (100 * x for x in proportion_confint(4, 40, method="wilson"))
    base = f"10.0 [{low:.1f}, {high:.1f}]; n=40"
    assert f"| commonest answer |  | {base} | {base} | {base} |" in text
    assert "Train lengths 128, 256; evaluation lengths 256, 512, 1024" in text


def test_learned_positions_end_at_the_context(small: Small):
    found = row(small.csv("table_09"), model="gpt2_ape", train_length=128, eval_length=1024)
    assert found.state == "over_context"
    assert OVER_CONTEXT in (small.out / "table_09.md").read_text()
    assert (
        row(small.csv("table_09"), model="meta_rope", train_length=128, eval_length=1024).state == "measured"
    )


def test_missing_cells_are_named_and_have_no_number(small: Small):
    table = small.exhibit("table_09")
    assert table.missing == ["finetune: model gpt2_ape; task parity; train length 256; seed 0, 1"]
    missing = small.csv("table_09").query("state == 'missing'")
    assert set(missing.model + missing.train_length.astype(str)) == {"gpt2_ape256"}
    assert missing[["value", "low", "high", "n", "seeds"]].isna().all(axis=None)
    assert (
        f"| GPT-2 + APE | 256 | {DASH} | {DASH}; paper 60.7 (124M parameters, ours 10) | {OVER_CONTEXT} |"
        in markdown(table)
    )
    assert "Missing: finetune: model gpt2\\_ape" in latex(table)
    assert small.exhibit("table_13").missing == [
        "ablate: model meta_rope; task parity; train length 128; setting neither; seed 1"
    ]
    assert not small.exhibit("table_07").missing


def test_a_missing_seed_leaves_the_other(small: Small):
    found = row(
        small.csv("table_13"), setting="neither", train_length=128, eval_length=256, model="meta_rope"
    )
    assert (found.value, found.n, found.seeds) == (0, N, 1)


def test_tables_of_tasks_that_nobody_ran_say_so(small: Small):
    for name in ("table_08", "table_10", "table_12", "table_14", "table_16"):
        exhibit = small.exhibit(name)
        assert exhibit.missing == ["no cell of it is in the ledger, and none is expected of preset small"]
        assert not exhibit.runs
        assert small.csv(name).empty


def test_no_pos_is_tested_on_the_same_examples(small: Small):
    found = row(small.csv("table_17"), model="meta_rope", train_length=128, eval_length=512)
    # A seed: 2 lost and 8 gained of 40.
    assert (found.won, found.lost, found.n, found.seeds) == (16, 4, 80, 2)
    assert (found.full, found.no_pos, found.gain) == pytest.approx((30 / 80, 42 / 80, 6 / 40))
    # The seeds agree to the example, so what is left open is the examples': a count more of each kind.
    error = math.sqrt((9 / 42 + 3 / 42 - (6 / 42) ** 2) / 42 / 2)
    assert found.high - found.gain == pytest.approx(student.ppf(0.975, 1) * error)
    assert found.p == pytest.approx(2 * student.sf(6 / 40 / error, 1))
    assert found.p_holm == pytest.approx(min(1, 6 * found.p))  # six comparisons alike


def test_a_gain_that_does_not_survive_is_no_gain(small: Small):
    # Table 2 has the gains that survive, of which there are none, and what the paper shows.
    assert len(small.csv("table_17")) == 6
    shown = set(zip(small.csv("table_02").train_length, small.csv("table_02").eval_length, strict=True))
    assert shown == {(128, 256), (256, 512), (256, 1024)}
    assert any("correction: 0 of 6 comparisons" in note for note in small.exhibit("table_02").notes)


def test_the_papers_value_stands_at_its_own_coordinates(small: Small):
    at = {"model": "meta_rope", "train_length": 256}
    recall = row(small.csv("table_07"), **at, eval_length=512)
    # Figure 1 has 48.6 and Table 2 has 33.3 there; Table 7 prefers the figure.
    assert recall.paper == 48.6
    assert row(small.csv("table_07"), model="meta_rope", train_length=128, eval_length=1024).isna().paper
    gain = row(small.csv("table_17"), **at, eval_length=512)
    assert (gain.paper_full, gain.paper_no_pos, gain.paper_gain) == (33.3, 66.7, 33.3)
    assert "paper 48.6 (152M parameters, ours 10)" in (small.out / "report.html").read_text()
    assert "Scale: the paper's models have 124M to 152M parameters; ours, preset small: " in (
        small.exhibit("figure_1").caption
    )
    assert row(small.csv("figure_1"), **at, task="parity").paper == 96.4


def test_figure_1_takes_the_papers_length(small: Small):
    assert set(small.csv("figure_1").eval_length) == {512}
    assert "evaluation length 512 (as in the paper)" in small.exhibit("figure_1").caption


def test_token_accuracy_of_extended_models(small: Small):
    found = row(small.csv("table_01"), model="meta_rope_yarn_1k", eval_length=1024)
    # One of two tokens is always right, the other with the example: (1 + 30/80) / 2.
    assert (found.value, found.n) == (pytest.approx(0.6875), 80)
    assert not small.csv("table_07").model.str.contains("yarn").any()


def test_noise_has_a_column_a_scale(small: Small):
    table = small.exhibit("table_15")
    assert list(table.frame.columns[3:]) == ["0 (full)", "0.5", "commonest answer", "tests nothing"]
    assert row(table.data, train_length=128, eval_length=256, setting="noise_0.5").value == 0


def test_settings_are_those_of_the_cells(small: Small):
    settings = small.exhibit("table_04").frame.set_index("setting")
    assert settings.here["block size (tokens)"] == "512"
    assert settings.paper["block size (tokens)"] == "1024"
    assert settings.here["share of meta tokens in a block"] == "0 (GPT-2 + APE); 0.1 (Meta + RoPE)"
    assert small.exhibit("table_05").frame.set_index("setting").here["new context (tokens)"] == "1024"
    low, high = small.other.curriculum.phases[0].lists
    assert small.exhibit("table_06").frame["lists m"][0] == f"{low}–{high}"
    assert small.exhibit("table_06").frame["paper: m"][0] == "3–8"


def test_speed_probes_and_rates(small: Small):
    with_meta = row(small.csv("table_03"), setting="with_meta_tokens")
    assert (with_meta.slowdown_median, with_meta.runs) == (1.1, 1)
    boost = row(small.csv("figure_2"), quantity="max_logit_boost")
    assert (boost["mean"], boost.n, boost.examples, boost.share_above_0) == (2.0, 16, 8, 1.0)
    rates = row(small.csv("figure_3"), site="meta", beta=0.1, seed="mean")
    assert (rates.rate_nats, rates.distortion_nats, rates.seeds) == (10, 5.1, 2)
    assert not any(e.missing for e in small.report.exhibits if e.name.startswith(("figure_2", "figure_3")))


def test_another_configuration_is_not_pooled(small: Small):
    # The newer run with every answer right would show if it were pooled or preferred.
    found = row(small.csv("table_07"), model="meta_rope", train_length=128, eval_length=256)
    assert (found.value, found.n) == (30 / 80, 80)
    note = next(n for n in small.exhibit("table_07").notes if n.startswith("Not pooled"))
    assert "differs in batch_size" in note
    assert small.other.id in note
    assert not any(small.other.fingerprint in e.runs for e in small.report.exhibits)


def test_an_unknown_preset_shows_the_newest_configuration(small: Small):
    ledger = Ledger.open(small.home)
    results = Results(ledger, select(ledger, "small"))
    point = results.exact[Key("meta_rope", "list_recall", 128, 256)]
    assert (point.pooled.value, point.n, point.seeds) == (1.0, N, 1)
    # What was built on the older fine-tune is not shown beside the newer one.
    assert Key("meta_rope", "list_recall", 128, 256, "no_pos") not in results.exact
    assert Key("meta_rope", "list_recall", 256, 256, "no_pos") in results.exact


def test_a_sweep_with_overridden_fields_expects_what_it_has(small: Small):
    ledger = Ledger.open(small.home)
    explicit = select(ledger, "small", get_preset("smoke"))
    assert not explicit.overridden
    assert len(explicit.expected)
    runs = read_runs(ledger).assign(preset="smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.source.runs.read_runs", lambda ledger: runs)
        selection = select(ledger, "smoke")
    assert selection.overridden
    assert selection.expected.empty
    assert len(selection.runs) == 65


def test_every_accuracy_has_n_and_interval(small: Small):
    for name in ["table_01", *TABLES[6:16], "figure_1"]:
        for value in small.exhibit(name).frame.to_numpy().ravel():
            if isinstance(value, Entry) and value.state == "measured":
                assert re.fullmatch(r"\[\d+\.\d, \d+\.\d\]", value.details[0])
                assert re.fullmatch(r"n=\d+", value.details[1])


def test_the_page_needs_no_other_file(small: Small):
    page = (small.out / "report.html").read_text()
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert not re.findall(r"url\(|@import|<script|<link|https?://", page)
    assert page.count('<section id="table_') == 17
    assert page.count('<img src="data:image/svg+xml;base64,') == 3
    assert page.count("<html") == 1


def test_the_page_says_where_numbers_come_from(small: Small):
    page = (small.out / "report.html").read_text()
    shown = small.report.results.shown
    assert len(shown) == 64
    assert all(f[:12] in page for f in shown.fingerprint if f in small.exhibit("table_17").runs)
    for fact in ("0123abcd", "2.11.0", "testhost", "small", "sqlite:///"):
        assert fact in page


def test_markup_in_text_is_escaped(small: Small):
    assert "<PAUSE" not in (small.out / "report.html").read_text()
    for name in TABLES + BEYOND:
        text = (small.out / f"{name}.tex").read_text()
        body = [line for line in text.splitlines() if not line.startswith(("%", "\\resizebox", "\\label"))]
        assert not re.search(r"(?<!\\)[_#%&](?!\s)", "\n".join(body).replace(" & ", ""))
        assert text.count("{") == text.count("}")
        assert not re.search(r"[^\x00-\x7f]", text), "characters that pdflatex may not know"


def test_an_artifact_that_is_gone_leaves_a_dash(small: Small):
    ledger = Ledger.open(small.home)
    results = Results(ledger, select(ledger, expected=small.preset))
    key = Key("meta_rope", "list_recall", 128, 256, "no_pos")
    ablated = results.runs("ablate", task="list_recall", train_length="128", setting="no_pos")
    for record in ablated.record:
        results._tables[record.fingerprint, "records"] = None
    assert ablation(results, key) is None
    assert results.exact[key].n == 2 * N
    assert len(results.unreadable) == 2
