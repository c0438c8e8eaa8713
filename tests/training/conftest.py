"""A finished run, which tests copy before they change it."""

import pytest
from tests.training.quick_runs import complete, quick

import aggmatch
from aggmatch.runs.folder import RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunFolder:
    return complete(aggmatch.start(quick(), tmp_path_factory.mktemp("runs") / "whole")).folder
