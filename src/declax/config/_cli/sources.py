"""The files that a command line names, and the standard input."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from declax.config._cli.arguments import STANDARD_INPUT, Words
from declax.config._cli.output import usage_error
from declax.config._files.documents import MAX_BYTES, Document
from declax.config._files.formats import SUFFIXES, read_document, read_text
from declax.config.problems import steps_of
from declax.errors import suggest


def documents_of(words: Words) -> list[Document]:
    """The files that words name; `-` is the standard input."""
    missing = [file for file in words.files if file != STANDARD_INPUT and not Path(file).exists()]
    if missing:
        sliced = next((word for word in missing if re.search(r"\[\d*:\d*\]", word.partition("=")[0])), None)
        if sliced is not None:
            star = re.sub(r"\[\d*:\d*\]", "[*]", sliced)
            raise usage_error("a path has an index or a star, and no slice", got=sliced, fix=star)
        names = sorted(str(path) for path in Path().glob("*.*") if path.suffix.lower() in SUFFIXES)
        is_path = steps_of(missing[0]) is not None and not missing[0].lower().endswith(SUFFIXES)
        fix = suggest(missing[0], names) or (f"{missing[0]}=..." if is_path else None)
        raise usage_error("there is no such file", got=", ".join(missing), fix=fix)
    return [_from_standard_input() if file == STANDARD_INPUT else read_document(file) for file in words.files]


def _from_standard_input() -> Document:
    """The text of the standard input; its first line tells the format."""
    text = sys.stdin.read(MAX_BYTES + 1)
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    is_toml = "=" in first or first.startswith("[")
    return read_text(text, "standard input", ".json" if first.startswith("{") else ".toml" if is_toml else ".yaml")
