"""A network whose numbers are divided among all processes: torch's `fully_shard`, by `--shard`.

Each process has one part of every parameter, of its moments and of its average; a block's parameters are put together
for the time that it computes (Zhao et al., "PyTorch FSDP", 2023; ZeRO, stage 3). The network itself knows nothing of
it. What the loop does with parameters and gradients it does with the parts, which are plain tensors: only norms need
all.

Behind every epoch the whole network is put together in each process, to be evaluated and saved like any other. A state
on disk is written by all, each its parts, by torch's distributed checkpoint as safetensors; it is read as a whole,
by one process or by any number.
"""

import copy
import errno
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed as dist, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.futures import Future

from vitrail.data.tensor_files import write_tensors
from vitrail.errors import Hint, UsageError, out_of_memory
from vitrail.training.optimizer import Average

NETWORK, AVERAGE, OPTIMIZER, TOTALS = "network", "average", "optimizer", "totals"


class Shards:
    """What this process has of a network; divides it in place.

    Args:
        network: Whole, and the same in all processes; its parameters are DTensors from then on.
        optimizer: Of its parameters; goes on with the parts, and with the parts of its moments.
        average: Of its parameters; goes on with the parts, too.

    Attributes:
        whole: A plain network of the same kind, with the numbers that are evaluated, as they were when they were
            gathered last.

    Raises:
        UsageError: The network has a parameter that cannot be divided.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None) -> None:
        for name, parameter in network.named_parameters():
            if not parameter.ndim:
                problem = f"--shard divides parameters by rows, and {name} is a single number"
                raise UsageError(problem, Hint(drop=["shard"]))
        before = dict(network.named_parameters())
        self.whole = copy.deepcopy(network) if average is None else average.network
        self.whole.requires_grad_(False).eval()
        mesh = init_device_mesh(next(network.parameters()).device.type, (dist.get_world_size(),))
        for part in _apart(network):
            fully_shard(part, mesh=mesh)
        fully_shard(network, mesh=mesh)
        self.divided: dict[str, DTensor] = dict(network.named_parameters())  # pyrefly: ignore
        self.parts = {
            name: nn.Parameter(each.to_local().detach(), each.requires_grad) for name, each in self.divided.items()
        }
        name_of = {parameter: name for name, parameter in before.items()}
        moments = dict(optimizer.state)
        optimizer.state.clear()
        for group in optimizer.param_groups:
            names = [name_of[parameter] for parameter in group["params"]]
            for name in names:
                held = {key: self.part(name, value) for key, value in moments.get(before[name], {}).items()}
                if held:
                    optimizer.state[self.parts[name]] = held
            group["params"] = [self.parts[name] for name in names]
        self.averaged = dict[str, Tensor]()
        if average is not None:
            theirs = dict(average.network.named_parameters())
            self.averaged = {name: self.part(name, theirs[name]) for name in theirs if before[name].requires_grad}
            average.follow(self.parts, self.averaged)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this process has of a tensor that is divided as a parameter is; one number is everybody's."""
        if not whole.ndim:
            return whole
        mesh = self.divided[name].device_mesh
        return distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None).to_local().clone()

    def together(self, name: str, part: Tensor) -> DTensor:
        """A part as one of the whole."""
        like = self.divided[name]
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def take_gradients(self) -> None:
        """The parts of the gradients, behind a backward pass."""
        for name, parameter in self.divided.items():
            self.parts[name].grad = None if parameter.grad is None else parameter.grad.to_local()  # pyrefly: ignore

    @torch.no_grad()
    def gather(self, network: nn.Module) -> None:
        """Put the whole network together, in all processes at once."""
        for name, parameter in self.whole.named_parameters():
            of = self.averaged.get(name)
            parameter.copy_((self.divided[name] if of is None else self.together(name, of)).full_tensor())
        for buffer, current in zip(self.whole.buffers(), network.buffers(), strict=True):
            buffer.copy_(current)


def _apart(network: nn.Module) -> Iterator[nn.Module]:
    """The blocks: what stands in lists, each gathered by itself; none where parts share their parameters."""
    everywhere = [id(each) for _, each in network.named_parameters(remove_duplicate=False)]
    if len(everywhere) == len(set(everywhere)):
        lists = [part for part in network.modules() if isinstance(part, nn.ModuleList)]
        yield from (block for blocks in lists for block in blocks)


# ---- on disk


class _Writer(checkpoint.HuggingFaceStorageWriter):
    """The same files, tensor by tensor: torch copies all of them at once, which aborts the process without memory."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the parts of this process; the result is empty, since this format has no index that needs it."""
        tensors, offsets = dict[str, Tensor](), dict[str, dict[str, list[int]]]()
        for item in plan.items:
            part, where = planner.resolve_data(item), item.tensor_data
            assert isinstance(part, Tensor)
            assert where is not None
            tensors[item.index.fqn] = part
            offsets[item.index.fqn] = {"saved_offsets": list(where.chunk.offsets)}
        file = Path(self.path) / f"shard-{plan.storage_data['shard_index']:05d}.safetensors"
        about = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(offsets)}
        write_tensors(file, tensors, checksum=False, metadata=about)
        done = Future[list[WriteResult]]()
        done.set_result([])
        return done


def write_parts(shards: Shards, state: Any, folder: Path) -> None:
    """Write a state, in all processes at once.

    Args:
        shards: Of its network.
        state: A `vitrail.training.loop.State`.
        folder: That is there.

    Raises:
        OSError: A process could not write.
        MemoryError: A process had no memory.
    """
    tensors: dict[str, Tensor] = {f"{NETWORK}/{name}": each.detach() for name, each in shards.divided.items()}
    buffers = state.network.state_dict().keys() & dict(state.network.named_buffers()).keys()
    tensors |= {f"{NETWORK}/{name}": state.network.get_buffer(name) for name in sorted(buffers)}
    tensors |= {f"{AVERAGE}/{name}": shards.together(name, part) for name, part in shards.averaged.items()}
    named = {parameter: name for name, parameter in shards.parts.items()}
    order = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]
    for place, parameter in enumerate(order):
        for name, value in state.optimizer.state.get(parameter, {}).items():
            whole = shards.together(named[parameter], value) if value.ndim else value
            tensors[f"{OPTIMIZER}/{place}.{name}"] = whole
    tensors |= {f"{TOTALS}/{name}": value for name, value in state.totals.items()}
    try:
        checkpoint.save(tensors, storage_writer=_Writer(str(folder), save_distributed=True))
    except CheckpointException as error:
        for failure in error.failures.values():  # by rank
            cause = failure[0] if isinstance(failure, tuple) else failure
            if out_of_memory(cause):
                raise MemoryError from error
            if isinstance(cause, OSError):
                why = cause.strerror or str(cause)
                raise OSError(cause.errno or errno.EIO, why, str(folder)) from error
        raise


def read_parts(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The whole tensors of a state, by what they are of; by this process alone."""
    described = checkpoint.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    found = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in described.items()}  # pyrefly: ignore
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that nobody else reads
        checkpoint.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder)), no_dist=True)
    kinds: dict[str, dict[str, Tensor]] = {NETWORK: {}, AVERAGE: {}, OPTIMIZER: {}, TOTALS: {}}
    for name, tensor in found.items():
        kind, _, rest = name.partition("/")
        kinds[kind][rest] = tensor
    return kinds
