"""Print JSON files of `aggmatch bench --json FILE` as Markdown tables: python benchmarks/tables.py FILE ..."""

import json
import sys
from pathlib import Path

from aggmatch.bench.report import tables

if __name__ == "__main__":
    for name in sys.argv[1:]:
        for table in tables(json.loads(Path(name).read_text(encoding="utf-8"))):
            print(f"**{table.title}**\n\n{table.markdown()}")
