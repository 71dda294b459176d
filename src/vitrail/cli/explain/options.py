"""What can be typed after `vitrail explain`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.cli.parse import Positional


@dataclass(frozen=True, kw_only=True)
class Explain:
    """What can be typed after `vitrail explain`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files or folders of them; or one named set, manifest or the run's own data, whose test pictures (or
    validation pictures, where there is no test) are taken. Planted pictures, whose evidence is known, may show no
    digit or two: planted:empty, planted:double, planted:mnist,double,2x3"""
    method: str | None = None
    """How to explain: raw_attention, head_view, rollout, gradient_rollout, attention_grad_cam, generic_attention,
    legrad, attcat, tam, saliency, input_x_gradient, smooth_grad, integrated_gradients, grad_cam, hires_cam, occlusion,
    rise, kernel_shap, conservative; generic_attention when left out. A model that writes has cross_attention."""
    layer: str | None = None
    """The layer that the method reads, where it reads one: a number, -1 for the last, or a name such as
    blocks.3.norm1."""
    head: int | None = None
    """The head that the method reads, where it can; all together when left out."""
    compare: bool = False
    """Several methods side by side, on one colour scale."""
    methods: str | None = None
    """Which ones --compare shows, with commas between; all but those that take long when left out."""
    target: str | None = None
    """The class to explain, by name; each picture's top class when left out."""
    rather_than: str | None = None
    """The class that it is held against: why this one rather than that one."""
    no_trust: bool = False
    """Only the maps, without the test on the model that says how far to trust each; far quicker."""
    reference: Path | None = None
    """Pictures that cover squares in that test: a folder of them, or another run; the model's own when left out."""
    masks: Path | None = None
    """A folder with a PNG for each picture, of the same name, not black where the evidence lies."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the passes that test maps; auto times bf16 against fp32 once, on a wide network, and takes the faster."""
    count: int = 8
    """How many pictures of a set or folder, evenly spread over it."""
    out: Path | None = None
    """The page (.html), or a folder for it; explanation.html here when left out. Pictures go into a folder of the same
    name beside the page."""
    data_root: Path | None = None
    """Where named sets lie."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    json: bool = False
    """Print a JSON list with the values of every map."""
