"""How many of our files a report enters: a reader who follows it must open that many."""

import os
import subprocess
import sys
from pathlib import Path

import aggmatch

SOURCE = Path(aggmatch.__file__).parent
FIXTURE = Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "finished"
MOST = 45

COUNT = f"""
import inspect
import sys
from aggmatch.cli import main

entered = set()

def note(frame, event, _):
    code = frame.f_code
    called = code.co_flags & inspect.CO_NEWLOCALS  # not the body of a module or a class, which an import runs
    if event == "call" and called and code.co_filename.startswith({str(SOURCE)!r}):
        entered.add(code.co_filename)

sys.argv = ["aggmatch", "report", {str(FIXTURE)!r}, "--out", "page.html", "--quiet"]
sys.setprofile(note)
try:
    main()
except SystemExit as stop:
    assert not stop.code
sys.setprofile(None)
print("\\n".join(sorted(file for file in entered if file.endswith(".py"))))
"""


def test_a_report_of_one_run_enters_few_of_our_files(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", COUNT]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entered = done.stdout.split()
    assert str(SOURCE / "report/page.py") in entered
    assert len(entered) <= MOST, "\n".join(entered)
