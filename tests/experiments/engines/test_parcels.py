"""Archives of run folders: what is sent, in which order it is unpacked, and what is refused."""

import io
import tarfile
from itertools import count

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines import parcels
from aggmatch.experiments.engines.parcels import files_of, pack, rank, remove_old_checkpoints, unpack
from aggmatch.runs.folder import RunFolder

NAMES = ["split.json", "config.json", "metrics.jsonl", "checkpoints/step-00000002-0123456789abcdef.safetensors"]
NAMES += ["model.safetensors", "summary.json"]


@pytest.fixture
def folder(tmp_path):
    """A folder with some files of a run."""
    path = tmp_path / "run"
    (path / "checkpoints").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (path / name).write_bytes(bytes([number]) * (number + 1))
    return path


def test_files_travel_in_pieces_and_arrive_as_they_were(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(parcels, "PIECE", 1000)
    archive = tmp_path / "a.tar"
    pieces = list(pack(folder, NAMES, archive))
    assert len(pieces) > 3
    assert not archive.exists()
    archive.write_bytes(b"".join(pieces))
    unpack(archive, tmp_path / "home/run")
    for name in NAMES:
        assert (tmp_path / "home/run" / name).read_bytes() == (folder / name).read_bytes()


def test_locks_links_and_unfinished_files_stay_where_they_are(folder, tmp_path):
    (folder / ".lock").touch()
    (folder / ".model.safetensors.12.part").touch()
    (tmp_path / "secret").write_text("x")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert sorted(files_of(folder)) == sorted(NAMES)
    assert files_of(folder)["metrics.jsonl"].size == 3


def test_every_moment_of_unpacking_leaves_a_folder_that_can_be_resumed(folder, tmp_path, monkeypatch):
    assert sorted(NAMES, key=rank) == NAMES, "the configuration first, then the log, its checkpoints, and the summary"
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"".join(pack(folder, NAMES[::-1], tmp_path / "out.tar")))
    written, numbers = [], count(1)

    def fail_later(path, data):
        if next(numbers) > 3:
            raise AggMatchError("no space left")
        written.append(path.name)

    monkeypatch.setattr(parcels, "write_atomically", fail_later)
    with pytest.raises(AggMatchError, match="no space left"):
        unpack(archive, tmp_path / "home")
    assert written == NAMES[:3]


def member(name, kind=tarfile.REGTYPE, link=""):
    """A member of an archive."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("/etc/outside"),
        member("checkpoints/../../outside"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.LNKTYPE, "config.json"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
        member("sparse", tarfile.GNUTYPE_SPARSE),
        member("folder", tarfile.DIRTYPE),
    ],
    ids=lambda bad: bad.name,
)
def test_an_archive_with_anything_but_files_inside_the_folder_is_refused_as_a_whole(bad, tmp_path):
    archive, home = tmp_path / "a.tar", tmp_path / "home"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("config.json"), io.BytesIO())
        tar.addfile(bad)
    with pytest.raises(AggMatchError, match=bad.name):
        unpack(archive, home)
    assert not home.exists()


def test_a_damaged_archive_is_an_error_that_names_the_folder(tmp_path):
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"x" * 1024)
    with pytest.raises(AggMatchError, match="home.*damaged"):
        unpack(archive, tmp_path / "home")


def test_a_file_is_not_written_through_a_link(folder, tmp_path):
    archive, home, target = tmp_path / "a.tar", tmp_path / "home", tmp_path / "target"
    archive.write_bytes(b"".join(pack(folder, NAMES, tmp_path / "out.tar")))
    home.mkdir()
    target.write_text("old")
    (home / "config.json").symlink_to(target)
    with pytest.raises(AggMatchError, match="config.json"):
        unpack(archive, home)
    assert target.read_text() == "old"


def test_checkpoints_that_the_machine_has_deleted_are_deleted_here(folder):
    old = folder / "checkpoints/step-00000001-0123456789abcdef.safetensors"
    old.touch()
    remove_old_checkpoints(RunFolder(folder), NAMES)
    assert not old.exists()
    assert (folder / NAMES[3]).exists()
