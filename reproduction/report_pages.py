"""The pages of the report: Markdown for each experiment, an index with the verdicts, and one HTML file with all."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from reproduction import report
from reproduction.report import Chapter, Picture, ReportOptions, Table

MADE: Final = "This page is made by `shoal reproduce all`; its text is in the experiment's own file."
HEADINGS: Final = ("experiment", "what it does", "trials", "published figures", "agree", "differ", "no band")
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } img { max-width: 100% }
td, th { border: 1px solid #ccc; padding: .15rem .5rem; text-align: left; font-size: 13px }
th { background: #f2f2f2 } code { background: #f4f4f4 } .differs { background: #fbe3e0 } .agrees { background: #e6f3e6 }
@media (prefers-color-scheme: dark) {
  body { background: #1b1b1b; color: #ddd } th { background: #2a2a2a } code { background: #2a2a2a }
  td, th { border-color: #444 } .differs { background: #4b2622 } .agrees { background: #21381f }
  img { background: #fff }
}
"""


class Verdicts(NamedTuple):
    """How many figures of a chapter were published, and how many of those agree."""

    published: int
    agree: int
    differ: int

    @property
    def without_band(self) -> int:
        """Published figures for which no band is claimed."""
        return self.published - self.agree - self.differ


def verdicts(chapter: Chapter) -> Verdicts:
    """The counts over all tables of a chapter."""
    results = [result for table in chapter.tables for result in table.results]
    agrees = [verdict for result in results for verdict in result.agrees.values()]
    return Verdicts(sum(len(result.published) for result in results), agrees.count(True), agrees.count(False))


def write_pages(chapters: Sequence[Chapter], options: ReportOptions) -> list[Path]:
    """Write all pages into the folder of the report -> their paths."""
    pages = {f"{chapter.name}.md": page(chapter) for chapter in chapters}
    pages["index.md"] = index(chapters, options)
    pages["report.html"] = as_html(chapters, options)
    pages["results.json"] = as_json(chapters)
    for name, text in pages.items():
        (options.out / name).write_text(text, encoding="utf-8")
    return [options.out / name for name in pages]


def index(chapters: Sequence[Chapter], options: ReportOptions) -> str:
    """The first page, in Markdown: each experiment with the number of its figures that agree."""
    lines = ["# Published figures, reproduced", "", _opening(options), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|---:|---:|---:|---:|"]
    for chapter in chapters:
        counts = verdicts(chapter)
        numbers = (counts.published, counts.agree, counts.differ, counts.without_band)
        name, trials = f"[{chapter.name}]({chapter.name}.md)", " or ".join(map(str, _numbers_of_trials(chapter.tables)))
        cells = (name, chapter.title, trials, *map(str, numbers))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", MADE]) + "\n"


def page(chapter: Chapter) -> str:
    """One experiment, in Markdown."""
    parts = [f"# {chapter.name}", chapter.title, f"    shoal reproduce {chapter.name}", chapter.text.strip()]
    for table in chapter.tables:
        parts += [table.text.strip(), _trials(table), report.as_markdown(table.results, table.formats)]
    parts += [f"![{picture.caption}]({picture.path.name})" for picture in chapter.pictures]
    return "\n\n".join(part for part in [*parts, MADE] if part) + "\n"


def as_html(chapters: Sequence[Chapter], options: ReportOptions) -> str:
    """Everything in one HTML page, pictures included; it loads nothing from elsewhere."""
    body = [_html_of(index(chapters, options).replace(".md)", ")").replace("](", "](#"))]
    for chapter in chapters:
        parts = [f"# {chapter.name}", chapter.title, chapter.text.strip()]
        body.append(f'<section id="{html.escape(chapter.name)}">{_html_of(chr(10).join(_spaced(parts)))}')
        for table in chapter.tables:
            above = "\n".join(_spaced([table.text.strip(), _trials(table)]))
            body.append(_html_of(above) + _html_of(report.as_markdown(table.results, table.formats)))
        body += [_embedded(picture) for picture in chapter.pictures]
        body.append("</section>")
    head = f'<meta charset="utf-8"><title>Published figures, reproduced</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def as_json(chapters: Sequence[Chapter]) -> str:
    """{experiment: {"rows": [...]}} for programs; the rows are those of `shoal reproduce NAME --json`."""
    rows = {
        chapter.name: [row for table in chapter.tables for row in json.loads(report.as_json(table.results))["rows"]]
        for chapter in chapters
    }
    return json.dumps(rows, indent=1) + "\n"


def _opening(options: ReportOptions) -> str:
    amount = "the papers' numbers of trials" if options.trials is None else f"{options.trials} trials of each setting"
    if options.quick:
        amount = "one trial of one small data set for each experiment, which shows the form and no more"
    return (
        f"Each experiment runs again what a paper has measured, with {amount}. A figure *agrees* if it is within "
        "the band that the experiment's page states; with fewer trials than the experiment's own number nothing "
        "is compared but mean ranks, whose band widens. *No band*: published and shown, but no agreement is "
        "claimed, for the reason on the page or for too few trials. `shoal reproduce NAME --data FOLDER --check` "
        "runs one experiment and ends with exit code 1 if a figure differs; FOLDER holds the data sets as their "
        "authors publish them, one `NAME.csv.gz` each with the class in its last column."
    )


def _trials(table: Table) -> str:
    numbers = _numbers_of_trials([table])
    return f"Trials: {' or '.join(map(str, numbers))}." if numbers else ""


def _numbers_of_trials(tables: Sequence[Table]) -> list[int]:
    return sorted({result.trials for table in tables for result in table.results})


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
    if lines[0].startswith("# "):
        return f"<h2>{_inline(lines[0][2:])}</h2>"
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
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )
