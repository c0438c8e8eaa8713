"""The directive `figure-table`: the registry of figures as a table, so that the page is never out of date."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from aggmatch.report.figures import describe, select


class FigureTable(SphinxDirective):
    """Every figure with its description and what it needs of a run, in the order of the report."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| `--only` | chapter | what it draws | needs |", "|---|---|---|---|"]
        for name, figure in select().items():
            lines.append(f"| `{name}` | `{figure.chapter}` | {describe(name)} | {figure.needs} |")
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("figure-table", FigureTable)
    return {"parallel_read_safe": True}
