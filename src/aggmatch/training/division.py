"""How a step is divided among processes: which batches fit, and what is averaged once per step."""

from torch import Tensor

from aggmatch.distributed import Processes
from aggmatch.methods.start import StartSettings
from aggmatch.methods.start.rotation import rotated_count
from aggmatch.models import Network
from aggmatch.models.network import batch_norms
from aggmatch.settings import RunSettings, TrainSettings
from aggmatch.training.optim import gradients_of


def check_batches(processes: Processes, settings: RunSettings, labeled: int) -> None:
    """Raise `InvalidValue` if the processes cannot share the images of a step equally.

    labeled: number of labelled images of a step.
    """
    train, method = settings.train, settings.method
    processes.check_divisible("train.batch", train.batch)
    processes.check_divisible("train.batch", labeled)
    if isinstance(method, StartSettings) and method.rotation_weight:
        rotated = rotated_count(method.rotated, train.batch * train.unlabeled_ratio)
        processes.check_divisible("method.rotated", rotated)


def shared_tensors(online: Network, average: Network, settings: TrainSettings) -> list[Tensor]:
    """Return what the processes average in every step: gradients and, if BatchNorm is local, its running statistics."""
    shared = gradients_of(list(online.parameters()))
    if settings.batchnorm == "local":
        for network in (online, average):
            buffers = [
                buffer for norm in batch_norms(network.backbone) for buffer in (norm.running_mean, norm.running_var)
            ]
            shared += [buffer for buffer in buffers if buffer is not None]
    return shared
