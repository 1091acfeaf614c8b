"""The learners of states call things by the terms of their field, one term each."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
FILES = (
    *sorted((HERE / "shoal/algorithms/states").glob("*.py")),
    HERE / "shoal/algorithms/from_counts/states.py",
    HERE / "shoal/algorithms/from_counts/pairs.py",
    HERE / "shoal/estimators/states.py",
    HERE / "client_nodes/labelling/dwells.py",
)
REPLACED = {
    "query": ("ask", "asks", "asked"),
    "codebook": ("book", "books"),
    "header": ("head", "heads"),
    "mutual information": ("told",),
    "evaluation": ("look", "looks", "looked"),
    "dwell": ("stay", "stays"),
}
"""term of the field -> words that stood for it before"""


@pytest.mark.parametrize("term", REPLACED)
def test_no_name_has_a_word_that_the_term_of_the_field_has_replaced(term: str) -> None:
    assert len(FILES) > 10, "the files were not found"
    old = set(REPLACED[term])
    for file in FILES:
        source = io.StringIO(file.read_text(encoding="utf-8"))
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.NAME:
                parts = set(re.split(r"_|(?<=[a-z])(?=[A-Z])", token.string))
                found = {part.lower() for part in parts} & old
                assert not found, f"{file.name}:{token.start[0]}: {token.string}"
