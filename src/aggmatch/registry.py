"""Open registries: a method, data set, backbone, view or figure comes from this package, a file, or another package.

A name is one of three kinds:

- `fixmatch`: a part of this package, or of an installed package that announces it under an entry point;
- `path/to/file.py:Name`: an object in a file;
- `module:Name`: an object in a module that Python can import, or that is in the working directory.

The last two can run any code, so names that were read from a run folder pass through `refuse_code` first.
"""

import hashlib
import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from aggmatch.errors import AggMatchError, unknown

Part = TypeVar("Part")
PARTS = ("method.name", "data.name", "model.name", "views.weak", "views.strong")
"""Settings that name a part, which may be code from elsewhere."""
CODE = re.compile(r"(?!timm:)(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
"""Matches a name of code outside this package. Networks of timm, `timm:NAME`, do not count as such."""


class Origin(NamedTuple):
    """Where a part comes from."""

    name: str
    place: str
    """`aggmatch`, or the package that announces it."""


class Registry(Generic[Part]):
    """Parts of one kind, looked up by name and imported on first use.

    kind: what a part is called in messages, such as "method".
    plural: the word after `aggmatch list`, and the end of the entry-point group `aggmatch.<plural>`.
    builtin: returns the parts of this package by name, each as `module:attribute` or itself.
    accepts: says whether an object is such a part; `wanted` says in words what it should be.
    """

    def __init__(
        self,
        kind: str,
        plural: str,
        *,
        builtin: Callable[[], Mapping[str, str | Part]],
        accepts: Callable[[Any], bool],
        wanted: str,
    ) -> None:
        self.kind, self.plural, self.builtin, self.accepts, self.wanted = kind, plural, builtin, accepts, wanted

    def __contains__(self, name: str) -> bool:
        return name in self.builtin() or name in self.announced()

    def announced(self) -> dict[str, EntryPoint]:
        """Parts of installed packages by name; those of this package win over parts of the same name."""
        own = self.builtin()
        return {entry.name: entry for entry in entry_points(group=f"aggmatch.{self.plural}") if entry.name not in own}

    def names(self) -> list[str]:
        """Every name that needs no path, sorted."""
        return sorted([*self.builtin(), *self.announced()])

    def origins(self) -> list[Origin]:
        """Where each named part comes from."""
        announced = self.announced()
        place = {name: entry.dist.name if entry.dist else entry.module for name, entry in announced.items()}
        return [Origin(name, place.get(name, "aggmatch")) for name in self.names()]

    def load(self, name: str) -> Part:
        """Import the part called `name`; raise an `AggMatchError` if there is none or it is something else."""
        if is_code(name):
            part = load_code(name, self.kind)
        elif name in (builtin := self.builtin()):
            part = import_attribute(own) if isinstance(own := builtin[name], str) else own
        elif name in (announced := self.announced()):
            part = load_announced(announced[name], self.kind)
        elif name.removesuffix(":").endswith(".py"):
            file = name.removesuffix(":")
            raise AggMatchError(f"Name the {self.kind} in the file too, as {file}:Name, got '{name}'.")
        else:
            raise unknown(self.kind, name, self.names(), see=f"aggmatch list {self.plural}")
        if not self.accepts(part):
            raise AggMatchError(f"Cannot use {self.kind} '{name}': it must be {self.wanted}, got {part!r:.80}.")
        return part


def import_attribute(target: str) -> Any:
    """Import `module:attribute`, in which the attribute may be dotted."""
    module, _, attribute = target.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))


# Code from elsewhere ---------------------------------------------------------------------------------------------


def is_code(name: str) -> bool:
    """Whether a name stands for code in a file or module, such as `my_method.py:Mine`."""
    return CODE.fullmatch(name) is not None


def absolute(name: str) -> str:
    """The name with the whole path of its file, so that it means the same in every working directory.

    A module that is only in the working directory is named by its file, too.
    """
    match = CODE.fullmatch(name)
    if not match:
        return name
    try:
        file = file_of(match["place"])
        return f"{file.resolve()}:{match['name']}" if file else name
    except (OSError, RuntimeError, ValueError):  # an unknown user, a loop of links, a null character: no such file
        return name


def short_name(name: str) -> str:
    """The name without folders, for tables and file names: `/home/me/my_method.py:Mine` → `my_method.Mine`."""
    match = CODE.fullmatch(name)
    if not match:
        return name
    place = Path(match["place"]).stem if match["place"].endswith(".py") else match["place"]
    return f"{place}.{match['name']}"


def refuse_code(names: Iterable[str], allowed: Iterable[str], where: object) -> None:
    """Raise an `AggMatchError` if a name read from `where` stands for code that the caller has not named as well."""
    known = {absolute(name) for name in allowed}
    refused = [name for name in dict.fromkeys(names) if is_code(name) and absolute(name) not in known]
    if refused:
        raise AggMatchError(
            f"{where} names code to run, {', '.join(refused)}, which is not run unless you name it too. "
            f"If you trust it, allow it by this name: allow={refused}",
            options=" ".join(f"--allow-code {shlex.quote(name)}" for name in refused),
        )


def load_code(name: str, kind: str) -> Any:
    """Import the object that `file.py:Name` or `module:Name` stands for."""
    match = CODE.fullmatch(name)
    assert match
    try:
        file = file_of(match["place"])
        module = import_file(file) if file else importlib.import_module(match["place"])
    except AggMatchError:
        raise
    except ModuleNotFoundError as error:
        raise AggMatchError(
            f"Cannot load {kind} '{name}': {error}. Write it as path/to/file.py:Name, or as module:Name with a module "
            f"in the working directory or on PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:  # whatever the file does when it is run
        raise AggMatchError(f"Cannot load {kind} '{name}': {type(error).__name__}: {error}.") from error
    if not hasattr(module, match["name"]):
        raise AggMatchError(f"Cannot load {kind} '{name}': {match['place']} has no '{match['name']}'.")
    return getattr(module, match["name"])


def load_announced(entry: EntryPoint, kind: str) -> Any:
    """Import the object that an installed package announces."""
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # whatever the package does when it is imported
        raise AggMatchError(f"Cannot load {kind} '{entry.name}' from {entry.value}: {error}.") from error


def file_of(place: str) -> Path | None:
    """The file of a place: a path, or a module that is only in the working directory; None for other modules."""
    if place.endswith(".py"):
        return Path(place).expanduser()
    top, file = place.split(".")[0], Path(*place.split(".")).with_suffix(".py")
    importable = top in sys.modules or importlib.util.find_spec(top) is not None
    return file if not importable and file.is_file() else None


def import_file(file: Path) -> ModuleType:
    """Import a Python file once, under a unique name.

    Other modules in its folder can be imported while it runs. They are forgotten afterwards: two files may each have a
    `helper.py` of their own.
    """
    file = file.resolve()
    name = f"{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise AggMatchError(f"There is no file {file}.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it runs
    try:
        with importable(file.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Within, modules of a folder can be imported; afterwards `sys.path` and `sys.modules` do not know them."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
