import gzip
import hashlib
import io
import socket
import sys
from dataclasses import replace

import numpy as np
import pytest

from aggmatch.data import Archive
from aggmatch.data.builtin import download
from aggmatch.data.builtin.download import fetch
from aggmatch.errors import AggMatchError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def archive(loopback):
    loopback.content = CONTENT
    return Archive("file.bin", loopback.url, MD5, len(CONTENT))


def error_of(archive, folder) -> str:
    with pytest.raises(AggMatchError) as error:
        fetch(archive, folder)
    return str(error.value)


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_completely_under_its_own_name(loopback, archive, tmp_path):
    path = fetch(archive, tmp_path / "a/b")
    assert path == tmp_path / "a/b/file.bin"
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == ["file.bin"]


def test_an_existing_file_is_not_fetched_again(loopback, archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    fetch(archive, tmp_path)
    assert loopback.requests == []


def test_an_existing_file_that_differs_gives_an_error_and_stays(loopback, archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"my own")
    message = error_of(archive, tmp_path)
    assert f"its MD5 is {hashlib.md5(b'my own').hexdigest()} instead of {MD5}. Delete it" in message
    assert (tmp_path / "file.bin").read_bytes() == b"my own"
    assert loopback.requests == []


def test_a_file_that_may_be_packed_anew_need_not_be_deleted(loopback, archive, tmp_path):
    assert "keep it" not in error_of_existing(archive, tmp_path)
    message = error_of_existing(replace(archive, file="file.gz"), tmp_path)
    assert "another packing of the same content, keep it and do not ask for a download" in message
    assert loopback.requests == []


def test_another_packing_of_the_published_content_is_accepted(loopback, archive, tmp_path):
    packed = replace(archive, file="file.gz", content_md5=MD5)
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(CONTENT, 1))
    assert fetch(packed, tmp_path) == path
    assert loopback.requests == []
    for other in (gzip.compress(CONTENT[1:]), gzip.compress(CONTENT)[:-9], b"not packed"):
        path.write_bytes(other)
        assert "is not the published file" in error_of(packed, tmp_path)


def error_of_existing(archive, folder) -> str:
    (folder / archive.file).write_bytes(b"packed anew")
    return error_of(archive, folder)


@pytest.mark.parametrize("lengths", [True, False])
def test_an_interrupted_download_keeps_its_part_and_continues(loopback, archive, tmp_path, lengths):
    loopback.sent, loopback.lengths = 400_000, lengths
    message = error_of(archive, tmp_path)
    assert "the connection closed after 400000 of 1000000 bytes. Run it again to continue the download." in message
    assert files(tmp_path) == ["file.bin.part"]
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:400_000]

    loopback.sent = None
    calls: list[tuple[int, int]] = []
    assert fetch(archive, tmp_path, lambda *step: calls.append(step)).read_bytes() == CONTENT
    assert loopback.requests == [None, "bytes=400000-"]
    assert calls[0] == (400_000, 1_000_000)
    assert calls[-1] == (1_000_000, 1_000_000)
    assert calls == sorted(calls)


@pytest.mark.parametrize(("ranges", "requests"), [("ignored", 1), ("refused", 2), ("wrong", 2)])
def test_a_download_starts_again_if_the_server_cannot_continue(loopback, archive, tmp_path, ranges, requests):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 10)
    loopback.ranges = ranges
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == ["bytes=10-", None][:requests]
    assert files(tmp_path) == ["file.bin"]


def test_a_part_longer_than_the_file_is_downloaded_again(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * (len(CONTENT) + 1))
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == [None]


def test_a_complete_part_is_only_renamed(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests == []
    assert files(tmp_path) == ["file.bin"]


def test_wrong_content_is_deleted_and_the_error_names_both_checksums(loopback, archive, tmp_path):
    loopback.content = b"<html>Please log in</html>"
    message = error_of(archive, tmp_path)
    assert f"its MD5 is {hashlib.md5(loopback.content).hexdigest()} instead of {MD5}. It was deleted" in message
    assert files(tmp_path) == []


def test_a_stale_part_is_deleted_so_that_the_next_try_succeeds(loopback, archive, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 10)
    assert "did not send the published file" in error_of(archive, tmp_path)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT


def test_the_error_quotes_the_answer_of_the_server(loopback, archive, tmp_path):
    loopback.status = 404
    assert f"Cannot fetch {archive.url}: the server answered 404 Not Found." in error_of(archive, tmp_path)
    assert files(tmp_path) == []


def test_a_missing_server_gives_one_clear_error(archive, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
    message = error_of(replace(archive, url=url), tmp_path)
    assert message == f"Cannot fetch {url}: Connection refused. Run it again to continue the download."


def test_a_silent_server_times_out(loopback, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    loopback.sent, loopback.stalls = 300_000, True
    assert "timed out. Run it again to continue the download." in error_of(archive, tmp_path)
    kept = (tmp_path / "file.bin.part").read_bytes()
    assert CONTENT.startswith(kept)
    assert kept


def test_a_full_disk_gives_one_clear_error_and_the_download_continues_later(loopback, archive, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        message = error_of(archive, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message.startswith(f"Cannot write {tmp_path / 'file.bin.part'}: File too large. ")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:500_000]
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert loopback.requests[1] == "bytes=500000-"


def test_a_folder_that_cannot_be_created_gives_one_clear_error(archive, tmp_path):
    (tmp_path / "data").touch()
    assert f"Cannot write {tmp_path / 'data'}: File exists." in error_of(archive, tmp_path / "data")


def test_nothing_is_printed_without_a_terminal(archive, tmp_path, capfd):
    fetch(archive, tmp_path)
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_progress_bar(archive, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fetch(archive, tmp_path)
    assert "file.bin" in terminal.getvalue()
    assert "1.0/1.0 MB" in terminal.getvalue()


@pytest.mark.parametrize("lengths", [True, False])
def test_a_server_that_sends_too_much_does_not_fill_the_disk(loopback, archive, tmp_path, lengths):
    written: list[int] = []
    loopback.content, loopback.lengths = CONTENT * 20, lengths
    with pytest.raises(AggMatchError) as error:
        fetch(archive, tmp_path, lambda done, _: written.append(done))
    message = str(error.value)
    assert f"{archive.url} did not send the published file: it sends more than 1,000,000 bytes" in message
    assert max(written) <= len(CONTENT)
    assert files(tmp_path) == []
