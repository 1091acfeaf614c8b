"""The pages of the report: results.json, an index of the figures, a page for each paper, and one
HTML file with all.

The Markdown pages are made from results.json alone, so that they can be compared with it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from reproduction import report
from reproduction.experiments import PAPERS
from reproduction.report import Chapter, Picture, ReportOptions, Table

MADE: Final = (
    "This page is made by `shoal reproduce all` from [results.json](results.json), which has every"
    " figure."
)
HEADINGS: Final = (
    "experiment",
    "what it does",
    "trials",
    "published figures",
    "agree",
    "differ",
    "no band",
)
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
img { max-width: 100% }
td, th { border: 1px solid #ccc; padding: .15rem .5rem; text-align: left; font-size: 13px }
th { background: #f2f2f2 }
code { background: #f4f4f4 }
.differs { background: #fbe3e0 }
.agrees { background: #e6f3e6 }
@media (prefers-color-scheme: dark) {
  body { background: #1b1b1b; color: #ddd }
  th { background: #2a2a2a }
  code { background: #2a2a2a }
  td, th { border-color: #444 }
  .differs { background: #4b2622 }
  .agrees { background: #21381f }
  img { background: #fff }
}
"""

Record = Mapping[str, Any]
"""entry of one experiment in results.json: `title`, `text`, `tables` with `text` and `rows`, and
`pictures`"""
PLAIN_KEYS: Final = {"dataset", "split", "among", "algorithm"}
"""keys whose values are understood without their names"""


class Verdicts(NamedTuple):
    """Numbers of figures of an experiment that were published, and that agree."""

    published: int
    agree: int
    differ: int

    @property
    def without_band(self) -> int:
        """Published figures for which no band is claimed."""
        return self.published - self.agree - self.differ


def verdicts(record: Record) -> Verdicts:
    """The counts over all tables of an experiment."""
    written = [figure for row in _rows(record) for figure in row["written"].values()]
    said = [verdict for _, _, verdict in written]
    return Verdicts(
        sum(published != report.NONE for published, _, _ in written),
        said.count(report.VERDICTS[True]),
        said.count(report.VERDICTS[False]),
    )


def write_pages(chapters: Sequence[Chapter], options: ReportOptions) -> list[Path]:
    """Write all pages into the folder of the report -> their paths."""
    records = {chapter.name: record_of(chapter) for chapter in chapters}
    pages = pages_of(records, opening(options))
    pages["report.html"] = as_html(chapters, pages["index.md"])
    pages["results.json"] = as_json(records)
    for name, text in pages.items():
        (options.out / name).write_text(text, encoding="utf-8")
    return [options.out / name for name in pages]


def record_of(chapter: Chapter) -> dict[str, Any]:
    """A chapter as plain values."""
    return {
        "title": chapter.title,
        "text": chapter.text.strip(),
        "tables": [
            {"text": table.text.strip(), "rows": rows_of(table)} for table in chapter.tables
        ],
        "pictures": [
            {"file": picture.path.name, "caption": picture.caption} for picture in chapter.pictures
        ],
    }


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The results of a table as plain values."""
    return [report.row_of(result, table.formats) for result in table.results]


def as_json(records: Mapping[str, Record]) -> str:
    """All records as JSON with a line for each row, so that a change of one figure is a change of
    one line."""
    lines = ["{"]
    for number, (name, record) in enumerate(records.items()):
        lines.append(f' {json.dumps(name)}: {{"title": {json.dumps(record["title"])},')
        lines.append(f'  "text": {json.dumps(record["text"])},')
        lines.append('  "tables": [')
        for place, table in enumerate(record["tables"]):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in table["rows"])
            end = "," if place + 1 < len(record["tables"]) else ""
            lines.append(f'   {{"text": {json.dumps(table["text"])}, "rows": [\n{rows}]}}{end}')
        end = "," if number + 1 < len(records) else ""
        lines.append(f'  ], "pictures": {json.dumps(record["pictures"])}}}{end}')
    return "\n".join([*lines, "}"]) + "\n"


def pages_of(records: Mapping[str, Record], first: str) -> dict[str, str]:
    """File name -> Markdown: the index, which begins with `first`, and a page for each paper."""
    pages = {"index.md": index(records, first)}
    for name in dict.fromkeys(page_of(name) for name in records):
        heading, members = PAPERS.get(name, (name, (name,)))
        there = {member: records[member] for member in members if member in records}
        pages[f"{name}.md"] = page(heading, there)
    return pages


def page_of(experiment: str) -> str:
    """The name of the page that an experiment is on."""
    return next(
        (name for name, (_, members) in PAPERS.items() if experiment in members), experiment
    )


def index(records: Mapping[str, Record], first: str) -> str:
    """How many figures of each experiment agree, then for each setting the first published figure
    beside ours."""
    parts = ["# Published figures, reproduced", first]
    lines = [HEADINGS]
    for name, record in records.items():
        counts = verdicts(record)
        numbers = (counts.published, counts.agree, counts.differ, counts.without_band)
        trials = " or ".join(map(str, _numbers_of_trials(record)))
        lines.append(
            (f"[{name}]({page_of(name)}.md#{name})", record["title"], trials, *map(str, numbers))
        )
    parts.append(report.drawn(lines))
    for name, record in records.items():
        if verdicts(record).published:
            parts += [f"## {name}", report.drawn(_targets(record))]
    return "\n\n".join([*parts, MADE]) + "\n"


def _targets(record: Record) -> list[report.Line]:
    lines: list[report.Line] = [("what was run", "measure", "published", "obtained", "agree")]
    for row in _rows(record):
        published = {
            name: figure for name, figure in row["written"].items() if figure[0] != report.NONE
        }
        if not published:
            continue
        measure, (target, obtained, _) = next(iter(published.items()))
        said = [verdict for _, _, verdict in published.values() if verdict]
        agree = f"{said.count(report.VERDICTS[True])} of {len(said)}" if said else "no band"
        lines.append((_setting(row), report.label(measure), target, obtained, agree))
    return lines


def page(heading: str, records: Mapping[str, Record]) -> str:
    """The experiments of one paper, in Markdown: what was run, what differs, and why."""
    parts = [f"# {heading}"]
    for name, record in records.items():
        parts += [f"## {name}", record["title"], f"    shoal reproduce {name}", record["text"]]
        compared = verdicts(record).published > 0
        for table in record["tables"]:
            # A table with a text of its own explains itself; the others of a compared experiment
            # are in the index.
            if table["text"] or not compared:
                parts += [table["text"], _trials(table["rows"]), report.as_markdown(table["rows"])]
        differing = _differing(record)
        if len(differing) > 1:
            parts += ["Figures that differ:", report.drawn(differing)]
        parts += [f"![{picture['caption']}]({picture['file']})" for picture in record["pictures"]]
    return "\n\n".join(part for part in [*parts, MADE] if part) + "\n"


def _differing(record: Record) -> list[report.Line]:
    found = [
        (_setting(row), report.label(name), published, obtained)
        for row in _rows(record)
        for name, (published, obtained, verdict) in row["written"].items()
        if verdict == report.VERDICTS[False]
    ]
    return [("what was run", "measure", "published", "obtained"), *found]


def _rows(record: Record) -> Iterator[Record]:
    for table in record["tables"]:
        yield from table["rows"]


def _setting(row: Record) -> str:
    """The keys of a row in one cell: data set and split as they are, parameters with their
    names."""
    cells = zip(report.keys_of(row), report.key_cells(row), strict=True)
    return ", ".join(
        cell if name in PLAIN_KEYS else f"{report.label(name)} {cell}" for name, cell in cells
    )


def _trials(rows: Sequence[Record]) -> str:
    numbers = sorted({row["trials"] for row in rows})
    return f"Trials: {' or '.join(map(str, numbers))}." if numbers else ""


def _numbers_of_trials(record: Record) -> list[int]:
    return sorted({row["trials"] for row in _rows(record)})


def opening(options: ReportOptions) -> str:
    """Contents of the report, and the meanings of its words."""
    amount = (
        "the papers' numbers of trials"
        if options.trials is None
        else f"{options.trials} trials of each setting"
    )
    if options.quick:
        amount = (
            "one trial of one small data set for each experiment, which shows the form and no more"
        )
    first = (
        f"Each experiment runs again what a paper has measured, with {amount}. A figure *agrees* "
        "if it is within the band that the experiment's page states; with fewer trials than the "
        "experiment's own number nothing is compared but mean ranks, whose band widens. *No "
        "band*: published and shown, but no agreement is claimed, for the reason on the page or "
        "for too few trials. Means and standard deviations are over trials. The tables below "
        "have the first published figure of each setting, and how many of its figures agree; "
        "[results.json](results.json) has all."
    )
    second = (
        "`shoal reproduce NAME --data FOLDER --check` runs one experiment and ends with exit "
        "code 1 if a figure differs; FOLDER holds the data sets as their authors publish them, "
        "one `NAME.csv.gz` each with the class in its last column."
    )
    return "\n\n".join(
        textwrap.fill(paragraph, 120, break_on_hyphens=False) for paragraph in (first, second)
    )


def as_html(chapters: Sequence[Chapter], first: str) -> str:
    """Everything in one HTML page, pictures included; it loads nothing from elsewhere. `first` is
    the index."""
    body = [_html_of(re.sub(r"\]\([\w-]+\.md#", "](#", first))]
    for chapter in chapters:
        parts = [f"# {chapter.name}", chapter.title, chapter.text.strip()]
        body.append(
            f'<section id="{html.escape(chapter.name)}">{_html_of(chr(10).join(_spaced(parts)))}'
        )
        for table in chapter.tables:
            rows = rows_of(table)
            above = "\n".join(_spaced([table.text.strip(), _trials(rows)]))
            body.append(_html_of(above) + _html_of(report.as_markdown(rows)))
        body += [_embedded(picture) for picture in chapter.pictures]
        body.append("</section>")
    head = (
        f'<meta charset="utf-8"><title>Published figures, reproduced</title><style>{STYLE}</style>'
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    )


def _spaced(parts: Sequence[str]) -> list[str]:
    return [line for part in parts if part for line in (part, "")]


# Markdown to HTML: only what the pages above consist of.


def _html_of(markdown: str) -> str:
    blocks = [block for block in re.split(r"\n{2,}", markdown.strip()) if block.strip()]
    return "\n".join(map(_block, blocks))


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines[0].startswith("|"):
        return _table(lines)
    if heading := re.match(r"(#+) ", lines[0]):
        level = len(heading[1]) + 1
        return f"<h{level}>{_inline(lines[0][level:])}</h{level}>"
    if all(line.startswith("    ") for line in lines):
        return f"<pre>{html.escape(chr(10).join(line[4:] for line in lines))}</pre>"
    if lines[0].startswith("- "):
        items = re.split(r"\n- ", block[2:])
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    return f"<p>{_inline(block)}</p>"


def _table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows[2:])
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    verdict = f' class="{text}"' if text in ("agrees", "differs") else ""
    return f"<td{verdict}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
    escaped = re.sub(r"\*([^*]+)\*", r"<i>\1</i>", escaped)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', escaped)


def _embedded(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}"'
        f' src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )
