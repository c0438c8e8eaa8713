"""A trained model from the folder of its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggmatch.config import Layer, flatten
from aggmatch.data import DataSet, load
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation, evaluate
from aggmatch.methods import Method, Problem, load_method
from aggmatch.models import Network, build_network
from aggmatch.training.checkpoint import unpack
from aggmatch.training.folder import RunFolder
from aggmatch.training.settings import RunSettings, resolve
from aggmatch.training.state import choose_device


@dataclass(frozen=True)
class TrainedModel:
    """The network that a run saved, with the method that knows how to predict with it."""

    network: Network
    method: Method[Any]
    classes: tuple[str, ...]
    settings: RunSettings

    @classmethod
    def load(cls, run: Path, changes: list[Layer] | None = None) -> "TrainedModel":
        """Read the model of a finished run; `changes` may move it to another device."""
        folder = RunFolder(run)
        stored = Layer(str(folder.config), flatten(folder.read_json(folder.config)))
        settings = resolve([stored, *(changes or [])])
        if not folder.model.exists():
            raise AggMatchError(f"{run} has no model yet: its run has not finished. Continue it with --resume.")
        try:
            saved = unpack(folder.model.read_bytes())
            facts = saved.facts
            network = build_network(facts["model"], channels=facts["channels"], classes=len(facts["classes"]))
            problem = Problem(
                classes=network.classes, features=network.features, labels=facts["labels"], images=facts["images"]
            )
            method = load_method(settings.method_name)(settings.method, problem)
            network.head = method.build_head()
            network.load_state_dict(saved.section("network"))
            method.load_state_dict(saved.section("method"), strict=False)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise AggMatchError(f"Cannot read {folder.model}: {error}.") from error
        device = choose_device(settings.runtime.device)
        return cls(network.to(device).eval(), method.to(device), tuple(facts["classes"]), settings)

    def data(self, *, download: bool = False) -> DataSet:
        """The data set that it was trained on."""
        return load(self.settings.data.name, Path(self.settings.runtime.data_dir), download)

    def evaluate(self, data: DataSet) -> Evaluation:
        """Predictions on the test images."""
        return evaluate(self.method, self.network, data.test)
