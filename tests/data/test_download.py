import hashlib
import io
import socket
import sys
from dataclasses import replace

import numpy as np
import pytest

from aggmatch.data import Archive, download
from aggmatch.data.download import fetch
from aggmatch.errors import AggMatchError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def archive(loopback):
    loopback.content = CONTENT
    return Archive("file.bin", loopback.url, MD5, len(CONTENT))


def refusal(archive, folder) -> str:
    with pytest.raises(AggMatchError) as error:
        fetch(archive, folder)
    return str(error.value)


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_under_its_own_name(loopback, archive, tmp_path):
    path = fetch(archive, tmp_path / "a/b")
    assert path == tmp_path / "a/b/file.bin"
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == ["file.bin"]


def test_a_file_that_is_there_is_not_fetched_again(loopback, archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    fetch(archive, tmp_path)
    assert loopback.requests == []


def test_a_file_that_is_there_but_differs_is_reported_and_left_alone(loopback, archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"my own")
    message = refusal(archive, tmp_path)
    assert f"its MD5 is {hashlib.md5(b'my own').hexdigest()} instead of {MD5}. Delete it" in message
    assert (tmp_path / "file.bin").read_bytes() == b"my own"
    assert loopback.requests == []


@pytest.mark.parametrize("lengths", [True, False])
def test_a_broken_download_keeps_its_part_and_goes_on_from_there(loopback, archive, tmp_path, lengths):
    loopback.sent, loopback.lengths = 400_000, lengths
    message = refusal(archive, tmp_path)
    assert "the connection closed after 400000 of 1000000 bytes. Run it again to go on where it stopped." in message
    assert files(tmp_path) == ["file.bin.part"]
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:400_000]

    loopback.sent = None
    told: list[tuple[int, int]] = []
    assert fetch(archive, tmp_path, lambda *step: told.append(step)).read_bytes() == CONTENT
    assert loopback.requests == [None, "bytes=400000-"]
    assert told[0] == (400_000, 1_000_000)
    assert told[-1] == (1_000_000, 1_000_000)
    assert told == sorted(told)


@pytest.mark.parametrize(("ranges", "requests"), [("ignored", 1), ("refused", 2), ("wrong", 2)])
def test_a_server_that_cannot_continue_makes_it_begin_anew(loopback, archive, tmp_path, ranges, requests):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 10)
    loopback.ranges = ranges
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == ["bytes=10-", None][:requests]
    assert files(tmp_path) == ["file.bin"]


def test_a_part_longer_than_the_file_is_begun_anew(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * (len(CONTENT) + 1))
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == [None]


def test_a_part_that_is_complete_only_gets_its_name(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == []
    assert files(tmp_path) == ["file.bin"]


def test_wrong_content_is_deleted_and_both_checksums_named(loopback, archive, tmp_path):
    loopback.content = b"<html>Please log in</html>"
    message = refusal(archive, tmp_path)
    assert f"its MD5 is {hashlib.md5(loopback.content).hexdigest()} instead of {MD5}. It was deleted" in message
    assert files(tmp_path) == []


def test_a_stale_part_is_deleted_so_that_the_next_try_succeeds(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 10)
    assert "is not the published file" in refusal(archive, tmp_path)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT


def test_a_server_without_the_file_is_quoted(loopback, archive, tmp_path):
    loopback.status = 404
    assert f"Cannot fetch {archive.url}: the server answered 404 Not Found." in refusal(archive, tmp_path)
    assert files(tmp_path) == []


def test_a_server_that_is_not_there_is_one_sentence(archive, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
    message = refusal(replace(archive, url=url), tmp_path)
    assert message == f"Cannot fetch {url}: Connection refused. Run it again to go on where it stopped."


def test_a_server_that_falls_silent_is_given_up(loopback, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    loopback.sent, loopback.stalls = 300_000, True
    assert "timed out. Run it again to go on where it stopped." in refusal(archive, tmp_path)
    kept = (tmp_path / "file.bin.part").read_bytes()
    assert CONTENT.startswith(kept)
    assert kept


def test_a_full_disk_is_one_sentence_and_the_part_goes_on_later(loopback, archive, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        message = refusal(archive, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message.startswith(f"Cannot write {tmp_path / 'file.bin.part'}: File too large. Make room or ")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:500_000]
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests[1] == "bytes=500000-"


def test_a_folder_that_cannot_be_made_is_one_sentence(archive, tmp_path):
    (tmp_path / "data").touch()
    assert f"Cannot write {tmp_path / 'data'}: File exists." in refusal(archive, tmp_path / "data")


def test_nothing_is_printed_where_there_is_no_terminal(archive, tmp_path, capfd):
    fetch(archive, tmp_path)
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(archive, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fetch(archive, tmp_path)
    assert "file.bin" in terminal.getvalue()
    assert "1.0/1.0 MB" in terminal.getvalue()
