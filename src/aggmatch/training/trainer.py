"""The state of a run that training changes, and one training step from top to bottom."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aggmatch.augment.views import Augmenter
from aggmatch.data import DataSet, Split
from aggmatch.data.streams import BalancedStream, IndexStream
from aggmatch.devices import (
    choose_threads,
    computes_in_bfloat16,
    computing_on,
    return_freed_memory,
    search_pays,
    side_stream,
)
from aggmatch.distributed import Processes
from aggmatch.errors import AggMatchError
from aggmatch.functional import score_pseudo_labels
from aggmatch.methods import Batch, Method, StepResult, TrainingSet, build_modules
from aggmatch.models import Network, shorten_memory
from aggmatch.models.registry import load_backbone
from aggmatch.runs.checkpoint import Checkpoint
from aggmatch.settings import RunSettings
from aggmatch.training.ahead import ReadAhead
from aggmatch.training.cuda_graph import Captured
from aggmatch.training.division import check_batches, shared_tensors
from aggmatch.training.inputs import FeatureInputs, ImageInputs, Inputs, store_of
from aggmatch.training.meters import Meters
from aggmatch.training.optim import SGD, average_decay, copy_buffers, learning_rate, update_average
from aggmatch.training.place import choose_place, put_images


def seeds(settings: RunSettings) -> Iterator[int]:
    """Independent seeds for weights, labelled stream, unlabelled stream and views, from the run's seed and fold."""
    sequence = np.random.SeedSequence([settings.train.seed, settings.data.fold])
    return (int(seed) for seed in sequence.generate_state(4, np.uint64) >> np.uint64(1))


class Trainer:
    """Networks, method, optimizer, streams, generator and counters of a run; `step` advances them all.

    settings: of the run. data, split: the images, and which of them have which label. device: where all tensors are,
    except the training images if `runtime.place` says so. frozen: weights of the frozen backbone, as the run stored
    them; None to load the pretrained ones. processes: those that share the work of a step, each with a trainer in the
    same state. A step reads nothing back from the device.

    Example: `trainer.step()`, then `trainer.meters.read()["loss"]`.
    """

    def __init__(
        self,
        settings: RunSettings,
        data: DataSet,
        split: Split,
        device: torch.device,
        frozen: Mapping[str, Tensor] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.settings, self.device, self.processes = settings, device, processes or Processes()
        self.place = choose_place(settings.runtime.place, data.train.pixels, device)
        with self.processes.first_alone():  # it writes the file of images, which the others find
            self.data = data = put_images(data, self.place, device, settings.runtime)
        weight_seed, labeled_seed, unlabeled_seed, view_seed = seeds(settings)
        # If some classes are unknown, the known ones are the given labels: they cannot score pseudo labels.
        self.truth = data.train.labels.to(device) if (data.train.labels >= 0).all() else None
        on_device = split.to(device)
        self.labeled_index, self.labels = on_device.labeled, on_device.labels

        self.method, self.online, self.average = self.build_modules(data, len(split.unlabeled), weight_seed, frozen)
        self.threads = choose_threads(settings.runtime.threads, self.online)
        self.search = search_pays(self.online)
        slow = "backbone." if settings.train.backbone == "finetune" else ""
        self.optimizer = SGD(self.online, settings.optim, slow)
        with self.processes.first_alone():  # it stores features of a frozen backbone, which the others find
            self.inputs = self.build_inputs(data, split)

        train = settings.train
        on_stream = on_device if self.inputs.rows is None else split  # threads on the host read the images
        positions = torch.arange(len(self.labels), device=on_stream.labels.device)
        self.labeled_batch = self.method.labeled_batch(settings.method, train.batch, split.counts)
        check_batches(self.processes, settings, self.labeled_batch)
        self.labeled_stream: IndexStream | BalancedStream = (
            BalancedStream(positions, on_stream.labels, data.classes, self.labeled_batch, labeled_seed)
            if self.method.balanced
            else IndexStream(positions, self.labeled_batch, labeled_seed)
        )
        self.unlabeled_stream = IndexStream(on_stream.unlabeled, train.batch * train.unlabeled_ratio, unlabeled_seed)
        self.ahead: ReadAhead | None = None
        if self.inputs.rows is not None:
            self.ahead = ReadAhead(self.inputs.rows, split.labeled, self.draw_indices, self.stream_positions, device)
        self.generator = torch.Generator(device).manual_seed(view_seed)
        training = TrainingSet(
            pixels=self.inputs.plain,
            labeled=self.labeled_index,
            labels=self.labels,
            unlabeled=on_device.unlabeled,
        )
        self.method.begin(self.online, self.average, training)
        self.meters = Meters(device)
        self.steps_done = 0
        self.step_counter = torch.zeros((), device=device)  # the same number on the device, for schedules
        self.begin_stage()

    def begin_stage(self) -> None:
        """Capture the step again, because the method computes something else from now on."""
        self.stage = self.method.stage
        self.meters.expect_other_values()
        captured = self.device.type == "cuda" and self.settings.runtime.graph
        alone = not self.processes.connected
        self.run_step = Captured(self.compute, self.generator, alone=alone) if captured else self.compute

    def build_modules(
        self, data: DataSet, unlabeled: int, seed: int, frozen: Mapping[str, Tensor] | None
    ) -> tuple[Method[Any], Network, Network]:
        """Make the method, the online network and the average, which starts as a copy and needs no gradients."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            method, online = build_modules(
                self.settings.model,
                self.settings.train.backbone,
                self.settings.method_name,
                self.settings.method,
                channels=data.train.pixels.shape[1],
                classes=len(data.classes),
                labels=len(self.labels),
                images=len(data.train),
                mixed=computes_in_bfloat16(self.settings.train.precision, self.device),
                unlabeled=unlabeled,
                class_shares=tuple((self.labels.bincount(minlength=len(data.classes)) / len(self.labels)).tolist()),
            )
        load_backbone(online, self.settings.train.backbone, self.settings.model, frozen)
        online.exact = self.settings.train.exact_gradient
        online.fixed_norm = self.settings.train.batchnorm == "fixed"
        if (share := self.settings.train.batchnorm_memory) is not None:
            shorten_memory(online, share * self.settings.train.steps)
        online.normalize_by(data.train.pixels)
        online.to(self.device)
        average = copy.deepcopy(online).requires_grad_(False)
        for network in (online, average):
            network.divide(self.processes, synchronized=self.settings.train.batchnorm == "sync")
        return method.to(self.device), online, average

    def build_inputs(self, data: DataSet, split: Split) -> Inputs:
        """Make what the networks take; features of a frozen backbone are computed now, or found in the cache."""
        if self.online.frozen is None:
            augment = Augmenter(self.settings.views, mirror=data.mirror)
            return ImageInputs(data, split, augment, self.device, self.place)
        store = store_of(self.online, self.settings, mirror=data.mirror)
        inputs = FeatureInputs(store, data, split, self.method.views)
        copy_buffers(self.average, self.online)  # mean and deviation of the features
        return inputs

    @property
    def evaluated(self) -> Network:
        """The network whose accuracy is reported and which is saved as the model."""
        return self.average if self.settings.train.evaluated == "average" else self.online

    @property
    def graph(self) -> torch.cuda.CUDAGraph | None:
        """The captured step; None before the capture and without one."""
        return self.run_step.graph if isinstance(self.run_step, Captured) else None

    @property
    def finite(self) -> bool:
        """Whether all weights of both networks are finite; reads from the device."""
        weights = [*self.online.parameters(), *self.average.parameters()]
        return bool(torch.stack(torch._foreach_norm([weight.detach() for weight in weights])).isfinite().all())

    @property
    def images_per_step(self) -> int:
        """Views of images that a step makes."""
        train, views = self.settings.train, self.method.views
        unlabeled = train.batch * train.unlabeled_ratio * len(views.unlabeled)
        return self.labeled_batch * len(views.labeled) + unlabeled

    def release(self) -> None:
        """Drop the captured step, after the last one: a connection of processes ends after the graphs that use it.

        Memory that only steps needed is returned to the system.
        """
        self.run_step = self.compute
        return_freed_memory()

    def step(self) -> None:
        """Learn from the next images of both streams."""
        with computing_on(self.device, self.threads, search=self.search):
            self.method.refresh(self.steps_done)
            if self.method.stage != self.stage:
                self.begin_stage()
            self.run_step(*self.next_inputs())
        self.steps_done += 1

    def next_inputs(self) -> tuple[Tensor, ...]:
        """Return the next indices on the device, and their images if these were not there."""
        return self.draw_indices() if self.ahead is None else self.ahead.next()

    def draw_indices(self) -> tuple[Tensor, Tensor]:
        """Draw positions among the labelled images (B,) and indices of unlabelled images, (µB,) or none."""
        position_B = self.labeled_stream.next()
        return position_B, self.unlabeled_stream.next() if self.method.views.unlabeled else position_B[:0]

    def compute(self, position_B: Tensor, unlabeled_B: Tensor, *images: Tensor) -> None:
        """Do the part of a step that runs on the device: views, loss, gradients, optimizer, average, metrics."""
        batch = self.make_batch(position_B, unlabeled_B, *images)
        self.online.zero_grad()  # after a failed capture, gradients are in freed memory
        self.online.train()
        self.average.train()
        result = self.method.step(batch, self.online, self.average)
        with side_stream(self.device) as notes:  # reads `batch` and `result`, which exist until the join
            self.note(batch, result)
        result.loss.backward()
        if self.processes.connected:
            self.processes.average(shared_tensors(self.online, self.average, self.settings.train))
        self.optimizer.step(learning_rate(self.settings.optim, batch.progress))
        update_average(
            self.average,
            self.online,
            average_decay(self.settings.optim, self.step_counter),
            copy_statistics=self.method.average_statistics == "copied",
        )
        notes.join()
        self.step_counter.add_(1)

    def make_batch(self, position_B: Tensor, unlabeled_B: Tensor, *images: Tensor) -> Batch:
        """Make the views of the images that the method asks for.

        images: the labelled and the unlabelled ones, if they were read ahead.
        """
        views = self.method.views
        labeled_images, unlabeled_images = images or (None, None)
        with side_stream(self.device) as labeled_views:
            labeled_B, labels_B = self.labeled_index[position_B], self.labels[position_B]
            labeled = self.inputs.views(views.labeled, labeled_B, self.generator, labeled_images)
        unlabeled = self.inputs.views(views.unlabeled, unlabeled_B, self.generator, unlabeled_images)
        labeled_views.join()
        return Batch(
            labeled=labeled,
            labels=labels_B,
            labeled_index=labeled_B,
            labeled_position=position_B,
            unlabeled=unlabeled,
            unlabeled_index=unlabeled_B,
            progress=self.step_counter / self.settings.train.steps,
            generator=self.generator,
        )

    def note(self, batch: Batch, result: StepResult) -> None:
        """Add the logged values of a step to the meters."""
        values = {**result.parts, "loss": result.loss.detach()}
        if result.pseudo is not None:
            truth_B = None if self.truth is None else self.truth[batch.unlabeled_index]
            scores = score_pseudo_labels(result.pseudo, truth_B, self.method.problem.classes)
            values |= {f"pseudo_{name}": value for name, value in scores.items()}
        self.meters.add(values, self.step_counter)

    # Checkpoints -------------------------------------------------------------------------------------------------

    def modules(self) -> dict[str, dict[str, Tensor]]:
        """State dictionaries of both networks and of the method."""
        return {name: getattr(self, name).state_dict() for name in ("online", "average", "method")}

    def snapshot(self, **facts: object) -> Checkpoint:
        """Both networks and the method, for analyses; training cannot continue from it."""
        return Checkpoint(join(**self.modules()), facts)

    def checkpoint(self, **facts: object) -> Checkpoint:
        """The whole state, from which `restore` continues."""
        tensors = join(
            **self.modules(),
            optimizer=self.optimizer.state_dict(),
            meters=self.meters.state_dict(),
            generator={"state": self.generator.get_state()},
        )
        counters = {
            "step": self.steps_done,
            **(self.stream_positions() if self.ahead is None else self.ahead.streams),
            "meter_names": self.meters.names,
            "device": self.device.type,
        }
        return Checkpoint(tensors, {**counters, **facts})

    def stream_positions(self) -> dict[str, Any]:
        """Where both streams are: after the last batch that was drawn, which may not be used yet."""
        return {name: getattr(self, name).state_dict() for name in ("labeled_stream", "unlabeled_stream")}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where `checkpoint` was called, on the same type of device."""
        kind = checkpoint.facts.get("device", self.device.type)
        if kind != self.device.type:
            raise AggMatchError(
                f"Cannot resume on {self.device.type} a run that was trained on {kind}: random numbers and arithmetic "
                f"differ. Resume it with runtime.device={kind}, or start a new run.",
                options=f"--device {kind}",
            )
        for name in ("online", "average", "method", "optimizer"):
            getattr(self, name).load_state_dict(checkpoint.section(name))
        facts = checkpoint.facts
        self.meters.load_state_dict(facts["meter_names"], checkpoint.section("meters"))
        self.generator.set_state(checkpoint.tensors["generator.state"])
        self.labeled_stream.load_state_dict(facts["labeled_stream"])
        self.unlabeled_stream.load_state_dict(facts["unlabeled_stream"])
        if self.ahead is not None:
            self.ahead.restart()
        self.steps_done = facts["step"]
        self.step_counter.fill_(facts["step"])


def join(**sections: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of all sections by `section.name`."""
    return {f"{section}.{name}": tensor for section, state in sections.items() for name, tensor in state.items()}
