"""Tables as text, in boxes where rich is installed, and as HTML; the first row is the head, the last one the foot."""

from __future__ import annotations

import html
import importlib
import io
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

Options: TypeAlias = Mapping[str, Any]
_TEXTS = frozenset({"module", "class", "output", "holds"})
"""The columns that are aligned at the left."""


def aligned(table: Sequence[Sequence[str]], texts: Collection[str] = _TEXTS) -> str:
    """The lines of a table with a head and a foot; the columns of texts are aligned at the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in (table[0], rule, *table[1:-1], rule, table[-1]):
        cells = zip(table[0], row, widths, strict=True)
        parts = [cell.ljust(width) if name in texts else cell.rjust(width) for name, cell, width in cells]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def html_table(table: Sequence[Sequence[str]]) -> str:
    """The same table in HTML, without styles."""
    rows = []
    for number, row in enumerate(table):
        tag = "th" if number in (0, len(table) - 1) else "td"
        cells = (
            f'<{tag} style="text-align: {"left" if name in _TEXTS else "right"}">'
            f"{html.escape(cell).replace(chr(10), '<br>')}</{tag}>"
            for name, cell in zip(table[0], row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


class Table(str):
    """The text of a table, which shows as HTML in a notebook."""

    __slots__ = ("_html",)

    _html: str

    def _repr_html_(self) -> str:
        return self._html


def boxed(title: str, table: list[list[str]], caption: str, options: Sequence[Options]) -> Table:
    """A table with several lines in a cell; in boxes with the options of `tabulate`, if rich is installed."""
    made = Table(_rich(title, table, caption, *options) if find_spec("rich") else _plain(title, table, caption))
    made._html = html_table(table)
    return made


def _plain(title: str, table: list[list[str]], caption: str) -> str:
    """The table without rich: a line of text for each line of a cell."""
    lines = [table[0]]
    for row in table[1:]:
        cells = [cell.split("\n") for cell in row]
        height = max(map(len, cells))
        lines += [[cell[i] if i < len(cell) else "" for cell in cells] for i in range(height)]
    return f"{title}\n\n{aligned(lines, table[0])}\n\n{caption}\n"


def _rich(title: str, table: list[list[str]], caption: str, *options: Options) -> str:
    """The table in boxes."""
    table_kwargs, column_kwargs, console_kwargs = options
    tables: Any = importlib.import_module("rich.table")
    texts: Any = importlib.import_module("rich.text")
    consoles: Any = importlib.import_module("rich.console")
    head, *body, foot = table
    made = tables.Table(show_lines=True, show_footer=True, title=title, **table_kwargs)
    made.caption, made.caption_style = f"\n{caption}", "bold"
    for name, total in zip(head, foot, strict=True):
        footer = texts.Text(total, justify="right" if total == "Total" else "left")
        made.add_column(name, footer=footer, **column_kwargs)
    for row in body:
        made.add_row(*map(texts.Text, row))
    written = io.StringIO()
    consoles.Console(file=written, **{"force_terminal": True, **console_kwargs}).print(made)
    return written.getvalue()
