"""Exhibits as files: markdown, csv, LaTeX, png, svg, and the one page that holds them all."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
import matplotlib
import pandas as pd

from reports.exhibits.exhibit import MAJORITY, Entry, Exhibit
from reports.source.provenance import Provenance

TEMPLATE = Path(__file__).with_name("template.html")
_RUNS_SHOWN = 12  # fingerprints on a provenance line of a text file
_LATEX = {
    "\\": r"\textbackslash{}", "…": r"\ldots{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "]": "{]}", "<": r"\textless{}",
    ">": r"\textgreater{}", "—": "---", "–": "--", "−": "$-$",
    "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "±": r"$\pm$", "“": "``", "”": "''",
}  # fmt: skip


def write_all(exhibits: Sequence[Exhibit], provenance: Provenance, out: Path) -> Path:
    """Every exhibit's files and report.html under `out`. Returns the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    images: dict[str, str] = {}
    for exhibit in exhibits:
        exhibit.data.to_csv(out / f"{exhibit.name}.csv", index=False)
        if exhibit.figure is None:
            (out / f"{exhibit.name}.md").write_text(markdown(exhibit), encoding="utf-8")
            (out / f"{exhibit.name}.tex").write_text(latex(exhibit), encoding="utf-8")
        else:
            images[exhibit.name] = _draw(exhibit, out)
    page = out / "report.html"
    page.write_text(html(exhibits, provenance, images), encoding="utf-8")
    return page


def markdown(exhibit: Exhibit) -> str:
    """The exhibit as a markdown document."""
    parts = [f"# {exhibit.number}. {exhibit.title}", exhibit.caption, _markdown_table(exhibit.frame)]
    parts += _markdown_list(exhibit.notes)
    if exhibit.missing:
        parts += ["**Missing cells**", *_markdown_list(exhibit.missing)]
    if exhibit.paper is not None:
        parts += ["**The paper's values**", _markdown_table(exhibit.paper.frame)]
        parts += _markdown_list(exhibit.paper.notes)
    parts.append(runs_line(exhibit))
    return "\n\n".join(parts) + "\n"


def latex(exhibit: Exhibit) -> str:
    """The exhibit as a LaTeX table; the document needs booktabs and graphicx."""
    columns = "l" * exhibit.labels + "r" * (exhibit.frame.shape[1] - exhibit.labels)
    head = " & ".join(rf"\textbf{{{_tex(str(c))}}}" for c in exhibit.frame.columns)
    body = [" & ".join(_tex(str(v)) for v in row) + r" \\" for row in exhibit.frame.itertuples(index=False)]
    notes = [*exhibit.notes, *(f"Missing: {line}." for line in exhibit.missing), runs_line(exhibit)]
    lines = [
        "% needs \\usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(f'{exhibit.title}. {exhibit.caption}')}}}",
        rf"\label{{tab:{exhibit.name.replace('_', '-')}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip{{\footnotesize {_tex(note)}}}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def html(exhibits: Sequence[Exhibit], provenance: Provenance, images: dict[str, str]) -> str:
    """The page; `images` are data URIs by exhibit name, so that it needs no other file."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["entry"] = lambda value: isinstance(value, Entry)
    environment.filters["body"] = _body
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(exhibits=exhibits, provenance=provenance, images=images, majority=MAJORITY)


def runs_line(exhibit: Exhibit) -> str:
    """How many runs are behind it, and which."""
    if not exhibit.runs:
        return "From no run."
    short = ", ".join(f[:12] for f in exhibit.runs[:_RUNS_SHOWN])
    more = len(exhibit.runs) - _RUNS_SHOWN
    tail = f" and {more} more" if more > 0 else ""
    return f"From {len(exhibit.runs)} run{'s' * (len(exhibit.runs) > 1)}: {short}{tail}."


def _body(frame: pd.DataFrame, labels: int) -> list[list[object]]:
    """Rows with row labels left empty where the row above has the same ones."""
    rows: list[list[object]] = []
    above: list[object] = [None] * labels
    for row in frame.itertuples(index=False, name=None):
        same = 0
        # The last label always stands, so that no row is without one.
        while same < labels - 1 and row[same] == above[same]:
            same += 1
        above = list(row[:labels])
        rows.append([*[""] * same, *row[same:]])
    return rows


def _draw(exhibit: Exhibit, out: Path) -> str:
    """Write png and svg; returns the svg as a data URI. Text is drawn as paths, so no font is needed."""
    assert exhibit.figure is not None
    exhibit.figure.savefig(out / f"{exhibit.name}.png", dpi=160)
    buffer = io.BytesIO()
    # A fixed salt and no date: the same ledger gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": exhibit.name}):
        exhibit.figure.savefig(buffer, format="svg", metadata={"Date": None})
    (out / f"{exhibit.name}.svg").write_bytes(buffer.getvalue())
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _markdown_table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "(no rows)"
    rows = [
        list(map(str, frame.columns)),
        ["---"] * frame.shape[1],
        *frame.astype(object).to_numpy().tolist(),
    ]
    return "\n".join("| " + " | ".join(str(v).replace("|", r"\|") for v in row) + " |" for row in rows)


def _markdown_list(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _tex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
