"""The directive `figure-table`: the registry of figures as a table, so that the page is never out of date."""

import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from aggmatch.report.figures import FIGURES


class FigureTable(SphinxDirective):
    """Every figure with the first sentence of its module and what it needs of a run."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        rows = [["--only", "what it draws", "needs"]]
        for name in FIGURES.names():
            figure = FIGURES.load(name)
            described = (sys.modules[figure.draw.__module__].__doc__ or "").strip().splitlines()
            rows.append([f"`{name}`", described[0] if described else "", figure.needs])
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|---" * len(rows[0]) + "|")
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("figure-table", FigureTable)
    return {"parallel_read_safe": True}
