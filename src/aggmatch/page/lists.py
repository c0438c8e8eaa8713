"""The lists of images that the label page shows: what to label next, what is labelled, what may be wrong."""

from collections.abc import Iterable
from threading import RLock
from typing import Any, NamedTuple

from aggmatch.errors import AggMatchError
from aggmatch.page.index import Index
from aggmatch.page.rounds import Rounds
from aggmatch.storage.annotations import NOT_SURE, SKIPPED, Annotations, file_name

CONFIDENT = 200
"""Images of a class that the list of confident predictions shows at a time."""
DOUBTFUL = 500
"""Images that the list of doubtful predictions shows at a time."""


class Guess(NamedTuple):
    """A class that an image may have."""

    name: str
    prob: float
    """Its probability, or how sure a suggestion is."""
    consensus: float = 0.0


class Lists:
    """The images of a project by their labels and predictions. It changes nothing.

    index, notes, rounds, lock: of the project.

    Example: `project.lists.rows("queue")`.
    """

    def __init__(self, index: Index, notes: Annotations, rounds: Rounds, lock: RLock) -> None:
        self.index, self.notes, self.rounds, self.lock = index, notes, rounds, lock
        self.guessed: tuple[object, dict[str, Guess]] = (None, {})

    def marked(self, key: str) -> list[str | None]:
        """Return label and mark of an image."""
        file, state = file_name(self.index.names[key]), self.notes.state
        return [state.labels.get(file), state.marks.get(file)]

    def named(self, name: str) -> str:
        """Return the name that a class of the model has now."""
        return self.notes.state.renamed.get(name, name)

    def model_classes(self) -> list[str]:
        """Return the names that the classes of the model have now; two are the same if they were merged."""
        return [self.named(name) for name in self.rounds.result.classes] if self.rounds.result else []

    def guesses(self) -> dict[str, Guess]:
        """Return id → predicted class, for all images of the last result."""
        result = self.rounds.result
        if result is None:
            return {}
        classes, shown = self.model_classes(), self.index.shown
        if self.guessed[0] == (result, classes, shown):
            return self.guessed[1]
        best = result.probs.argmax(1)
        rows = zip(result.names, best.tolist(), result.probs.max(1).tolist(), result.consensus.tolist(), strict=True)
        found = {
            shown[name]: Guess(classes[number], round(prob, 4), round(agreed, 4))
            for name, number, prob, agreed in rows
            if name in shown
        }
        self.guessed = (result, classes, shown), found
        return found

    def rows(self, name: str, of_class: str = "") -> list[list[Any]]:
        """Return the images of a list: id, label, mark, guess, its probability, and the consensus of each.

        name: `queue` (what to label next), `all`, `labeled`, `unsure`, `skipped`, `doubtful`, `wrong` or `confident`;
        the last one shows one class.
        """
        with self.lock:
            guesses = self.guesses()
            if name == "wrong":
                guesses = guesses | self.suggestions()
            return [[key, *self.marked(key), *guesses.get(key, (None, 0, 0))] for key in self.keys_of(name, of_class)]

    def keys_of(self, name: str, of_class: str) -> list[str]:
        """Return the ids of a list in its order."""
        state = self.notes.state
        if name == "all":
            return list(self.index.names)
        if name == "labeled":
            files = [file for file, label in reversed(state.labels.items()) if of_class in ("", label)]
            return self.present(files)
        if name in ("unsure", "skipped"):
            wanted = NOT_SURE if name == "unsure" else SKIPPED
            return self.present(file for file, mark in state.marks.items() if mark == wanted)
        taken = {*self.present(state.labels), *self.present(state.marks), *self.index.unreadable}
        if name == "queue":
            return [key for key in self.ordered() if key not in taken]
        if name == "wrong":
            return self.doubted()
        if name not in ("doubtful", "confident"):
            raise AggMatchError(f"There is no list '{name}'.")
        free = [(key, guess) for key, guess in self.guesses().items() if key not in taken]
        if name == "doubtful":
            free.sort(key=lambda pair: (pair[1].consensus, pair[1].prob))
            return [key for key, _ in free[:DOUBTFUL]]
        free = [(key, guess) for key, guess in free if guess.name == of_class]
        free.sort(key=lambda pair: (-pair[1].consensus, -pair[1].prob))
        return [key for key, _ in free[:CONFIDENT]]

    def present(self, files: Iterable[str]) -> list[str]:
        """Return the ids of the files that are in the folder."""
        return [self.index.keys[file] for file in files if file in self.index.keys]

    def ordered(self) -> Iterable[str]:
        """Yield all ids: suggested images first, the others in an order that mixes folders and is always the same."""
        shown = self.index.shown
        first = dict.fromkeys(shown[name] for name in self.rounds.suggested() if name in shown)
        yield from first
        yield from sorted(key for key in self.index.names if key not in first)  # ids are hashes

    def doubted(self) -> list[str]:
        """Return the ids of labels that may be wrong, and that nobody has changed or confirmed since."""
        doubts = self.rounds.checked()[1]
        found = [(self.index.shown.get(doubt.name), self.named(doubt.given)) for doubt in doubts]
        confirmed = set(self.present(self.notes.state.confirmed))
        return [key for key, given in found if key and key not in confirmed and self.marked(key)[0] == given]

    def suggestions(self) -> dict[str, Guess]:
        """Return id → what doubted labels should be."""
        shown = self.index.shown
        found = [doubt for doubt in self.rounds.checked()[1] if doubt.name in shown]
        return {shown[doubt.name]: Guess(self.named(doubt.suggested), doubt.score) for doubt in found}

    def predictions(self) -> dict[str, Guess]:
        """Return file → class and probability; given labels have 1."""
        with self.lock:
            guesses, given = self.guesses(), self.labels()
            names = self.index.names.items()
            found = {name: Guess(given[name], 1.0) if name in given else guesses.get(key) for key, name in names}
            return {name: guess for name, guess in found.items() if guess}

    def labels(self) -> dict[str, str]:
        """Return file → given label of the images that are there."""
        with self.lock:
            state = self.notes.state
            pairs = ((name, state.labels.get(file_name(name))) for name in self.index.names.values())
            return {name: label for name, label in pairs if label}
