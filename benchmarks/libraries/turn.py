"""What one process of a bench does: it builds one library's network, proves it, and runs when it is its turn.

Each library builds the same ViT, with drawn numbers; the proof is that it answers as vitrail's network of these does.

python -m benchmarks.libraries.turn    a `Job` as one line of JSON comes in; one line goes out when it is ready, and one
                                for each line `go` that comes in: how many images a second
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.batches import Batch
from vitrail.data.plan import WHOLE, Share
from vitrail.errors import VitrailError
from vitrail.nn import ViT, ViTConfig, in_bf16
from vitrail.nn.cost import flops
from vitrail.runs.settings import Execution, Optimization
from vitrail.runtime import in_order
from vitrail.tasks.classify import cross_entropy
from vitrail.training.loop import start, train_loop
from vitrail.weights.convert import convert_network

OWN = "vitrail"
RATE = 1e-6  # of learning: what is learnt does not matter here


def _timm(c: ViTConfig) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=c.image,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        num_classes=c.classes,
    )


def _torchvision(c: ViTConfig) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(c.image[0], c.patch[0], c.depth, c.heads, c.width, c.mlp_width, num_classes=c.classes)


def _transformers(c: ViTConfig) -> nn.Module:
    from transformers import ViTConfig as Config, ViTForImageClassification

    return ViTForImageClassification(
        Config(
            hidden_size=c.width,
            num_hidden_layers=c.depth,
            num_attention_heads=c.heads,
            intermediate_size=c.mlp_width,
            image_size=c.image[0],
            patch_size=c.patch[0],
            id2label={number: str(number) for number in range(c.classes)},  # as many classes
        )
    )


def _vit_pytorch(c: ViTConfig) -> nn.Module:
    from vit_pytorch import ViT as Plain  # pyrefly: ignore[missing-import]

    return Plain(
        image_size=c.image[0],
        patch_size=c.patch[0],
        num_classes=c.classes,
        dim=c.width,
        depth=c.depth,
        heads=c.heads,
        mlp_dim=c.mlp_width,
    )


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "vit-pytorch": _vit_pytorch,
}


def present() -> list[str]:
    """The libraries that are installed here."""
    return [name for name in PEERS if importlib.util.find_spec(name.replace("-", "_")) is not None]


@torch.no_grad()
def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with every number drawn anew, of a size at which signals neither vanish nor explode."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn_like(parameter)
        wide = parameter.ndim > 1 and parameter[0].numel() > 1
        parameter.copy_(noise * parameter[0].numel() ** -0.5 if wide else parameter + noise / 50)
    return module.eval()


def contestant(name: str, config: ViTConfig) -> tuple[nn.Module, float]:
    """A library's network, and how far its answers are from those of vitrail's, made of the same numbers.

    Args:
        name: `vitrail`, or one of `PEERS`.
        config: Square images and patches.

    Returns:
        The network in eval mode; the largest gap of its logits by the largest logit in fp32, 0 for vitrail.

    Raises:
        DataError: It answers otherwise: what is timed would not be the same network.
        ImportError: The library is not here.
    """
    if name == OWN:
        return drawn(ViT(config)), 0.0
    module = drawn(PEERS[name](config))
    return module, convert_network(module).gap or 0.0


def answer(output: Any) -> Tensor:
    """The logits: transformers packs them."""
    return output if isinstance(output, Tensor) else output.logits


def written_step(network: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> Callable[[], int]:
    """Forward, cross-entropy, backward, AdamW; in bf16 by autocast, with the fused optimizer.

    Args:
        network: (b, c, h, w) to logits, or to something that holds them.
        images: (b, c, h, w) the same in each step.
        labels: (b,) of them.
        bf16: Else fp32, and AdamW as torch has it without being asked.
    """
    optimizer = torch.optim.AdamW(network.parameters(), RATE, fused=True if bf16 else None)

    def step() -> int:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(answer(network(images)).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(images)

    return step


class Same:
    """Training data that is one batch, again and again.

    Args:
        images: (b, c, h, w) normalised.
        labels: (b,) of them.
        classes: How many there are.
        steps: In an epoch.
    """

    seed = 0

    def __init__(self, images: Tensor, labels: Tensor, classes: int, steps: int) -> None:
        self.images, self.labels, self.steps = images, labels, steps
        self.device = images.device
        self.targets = F.one_hot(labels, classes).to(images.dtype)

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self.steps * len(self.images)

    def batches(
        self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None, share: Share = WHOLE
    ) -> Iterator[Batch]:
        """The batch, as often as an epoch has it."""
        ids = np.arange(len(self.images), dtype=np.int64)
        for number in range(start, self.steps):
            yield Batch(self.images, self.targets, self.labels, ids, epoch, number)


def own_step(network: nn.Module, images: Tensor, labels: Tensor, classes: int, bf16: bool) -> Callable[[], int]:
    """The next step of vitrail's loop: with its guard, its clipping and its decay by groups.

    Args:
        network: (b, c, h, w) to logits.
        images: (b, c, h, w) the same in each step.
        labels: (b,) of them.
        classes: How many there are.
        bf16: By autocast; else fp32.
    """
    choices = Optimization(epochs=1, batch_size=len(images), learning_rate=RATE, warmup_epochs=0.0)
    execution = Execution(
        device=str(images.device), threads=torch.get_num_threads(), precision="bf16" if bf16 else "fp32"
    )
    data = Same(images, labels, classes, steps=1_000_000)  # more than any bench makes
    loop = train_loop(start(network, choices), data, cross_entropy, choices, execution)

    def step() -> int:
        next(loop)
        return len(images)

    return step


MATRICES = "matrices"  # the contestant that only multiplies: what the machine can do at most
Form = Literal["default", "autocast", "bf16", "train", "train-autocast"]
How = Literal["whole", "apart", "chosen"]
FORMS: dict[str, str] = {
    "default": "as documented: fp32, no gradients",
    "autocast": "bf16 autocast, no gradients",
    "bf16": "bf16 weights, no gradients",
    "train": "a step of training as documented: fp32, AdamW",
    "train-autocast": "a step of training in bf16 autocast, fused AdamW",
}
TRAINED = ("train", "train-autocast")
SECONDS = 2.0  # that a turn takes at least
LEAST = 3  # calls of a turn


@dataclass(frozen=True)
class Job:
    """What a process is to do.

    Attributes:
        name: The library, or `matrices`.
        form: How it runs.
        size: Of the network, such as `B/16`.
        batch: Images at a time.
        image_size: Their side.
        device: Where.
        threads: Of torch; None for as many as it takes by itself.
        how: A batch on all threads (whole), or batches beside each other, each on one (apart); or as `embed`,
            `predict --out` and `train` choose where that is faster and answers alike (chosen): in bf16, and where
            nothing is trained a batch a thread.
    """

    name: str
    form: str
    size: str
    batch: int
    image_size: int = 224
    device: str = "cpu"
    threads: int | None = None
    how: How = "whole"


def per_second(call: Callable[[], int], device: str) -> float:
    """Images of as many calls as take some seconds, by the second; a call says how many it had."""
    synchronize(device)
    began, done, calls = time.perf_counter(), 0, 0
    while calls < LEAST or time.perf_counter() - began < SECONDS:
        done, calls = done + call(), calls + 1
        synchronize(device)
    return done / (time.perf_counter() - began)


def synchronize(device: str) -> None:
    """Wait for an accelerator."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def runs(job: Job, config: ViTConfig) -> tuple[Callable[[], int], float]:
    """What a turn calls again and again, and the gap of the proof."""
    torch.manual_seed(1)
    images = torch.randn(job.batch, config.channels, *config.image, device=job.device)
    if job.name == MATRICES:
        return multiplied(job, config), 0.0
    network, gap = contestant(job.name, config)
    network = network.to(job.device)
    if job.form in TRAINED:
        labels = torch.randint(config.classes, (len(images),), device=images.device)
        bf16 = job.form != "train" or job.how == "chosen"
        network.train()
        if job.name != OWN:
            return written_step(network, images, labels, bf16), gap
        return own_step(network, images, labels, config.classes, bf16), gap
    if job.how == "chosen":
        whole, network = network, in_bf16(network)
        with torch.inference_mode():
            exact = whole(images)
            gap = float((network(images) - exact).abs().max() / exact.abs().max())
    elif job.form == "bf16":
        network, images = network.bfloat16(), images.bfloat16()
    casts = job.form == "autocast" and job.how != "chosen"

    @torch.inference_mode()
    def answered() -> int:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=casts):
            return len(answer(network(images)))

    if job.how == "whole" or job.device != "cpu":
        return answered, gap
    count = torch.get_num_threads()

    def beside_each_other() -> int:
        return sum(in_order([answered] * (2 * count), count))

    return beside_each_other, gap


def multiplied(job: Job, config: ViTConfig) -> Callable[[], int]:
    """The largest product of a block, as often as has the FLOPs of the images of a batch: "images" of nothing else."""
    kind = torch.float32 if job.form in ("default", "train") else torch.bfloat16
    tokens = job.batch * config.tokens
    left = torch.randn(tokens, config.width, device=job.device, dtype=kind)
    right = torch.randn(config.mlp_width, config.width, device=job.device, dtype=kind)
    passes = 3.0 if job.form in TRAINED else 1.0
    times = max(1, round(passes * flops(config) * job.batch / (2 * tokens * config.width * config.mlp_width)))

    @torch.inference_mode()
    def products() -> int:
        for _ in range(times):
            F.linear(left, right)
        return job.batch

    return products


@contextmanager
def problems_as_lines() -> Iterator[None]:
    """What goes wrong goes out as one line, and ends the process."""
    try:
        yield
    except Exception as error:
        problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        print(json.dumps({"problem": " ".join(problem.split())}), flush=True)
        raise SystemExit(1) from error


def main() -> None:
    """Build, prove, and take turns."""
    job = Job(**json.loads(sys.stdin.readline()))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    with problems_as_lines():
        config = ViTConfig.from_size(job.size, image_size=job.image_size)
        call, gap = runs(job, config)
        call()  # warms up
        name = {OWN: "vitrail", MATRICES: "torch"}.get(job.name, job.name)
        ready = {"gap": gap, "version": version(name), "threads": torch.get_num_threads(), "job": asdict(job)}
        print(json.dumps(ready), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"rate": per_second(call, job.device)}), flush=True)


if __name__ == "__main__":
    main()
