"""A network and a method of explanation as one graph: images to outputs and a map, gradients written out.

    graph = with_map(model, "generic_attention")        a module: images (b, c, h, w) -> outputs (b, v), map (b, r, k)

A runtime of graphs has no gradients. The pass forward, the target that the codec chooses, the pass back and the
method's own equations are run once on tensors without numbers, and what torch did is written down as a graph
(`make_fx`), whose batch is free. No method is written a second time: a graph only reads its layers as a whole, since
which of their rows have a part is not known before it runs.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functionalize
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.errors import Hint, UsageError, nearest, raised_as
from vitrail.explain.forward import (
    Each,
    ForwardPass,
    Indices,
    Join,
    LayerAttention,
    Pieces,
    check_explainable,
    last_output,
    on_grid,
)
from vitrail.explain.methods.attcat import attcat_of
from vitrail.explain.methods.generic_attention import generic_relevance_of
from vitrail.explain.methods.gradient_rollout import gradient_rollout_of
from vitrail.explain.methods.table import DEFAULT
from vitrail.model import Model
from vitrail.nn import Record, ViT, evaluating
from vitrail.nn.attention import Attention
from vitrail.nn.record import attention_weights, weights_gradient
from vitrail.nn.twin import detached, resize_network, twin, wide
from vitrail.nn.vit import Images

Row = Callable[[ForwardPass], Float[Tensor, "b n"]]
ROWS: dict[str, Row] = {  # the methods that a graph can hold: of a pass, the row over all tokens
    "generic_attention": lambda forward: _rows_of(forward, generic_relevance_of),
    "attcat": attcat_of,
    "gradient_rollout": lambda forward: _rows_of(forward, gradient_rollout_of),
}
TRACED = 2  # images of the pass that is written down; of a single one torch takes the number as fixed


class _WholeLayer(LayerAttention):
    """A layer that is read as a whole, all heads and query rows at once."""

    def rows_read(self, rows: Float[Tensor, "*b n"]) -> Indices:
        return slice(None)

    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        return wide(self._kept.attention)

    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        assert self._at_attended is not None
        return wide(weights_gradient(self._at_attended, self._kept.values))

    def join_heads(
        self, each: Each, queries: Indices | None = None, *, heads: Indices | None = None, join: Join = "mean"
    ) -> Pieces:
        assert (join, heads) == ("mean", None)
        yield slice(None), each(self, slice(None), slice(None)).mean(dim=1)


class _WholePass(ForwardPass):
    """A pass with such layers."""

    def layer(self, place: str, at_attended: Float[Tensor, "b k n e"] | None = None) -> LayerAttention:
        return _WholeLayer(self.record.kept(place), at_attended)


def _rows_of(forward: ForwardPass, rule: Callable[..., Float[Tensor, "b r n"]]) -> Float[Tensor, "b n"]:
    return rule(forward.layers(gradients=True), forward.readout[:, None])[:, 0]


def with_map(model: Model, method: str, conservative: bool = False) -> nn.Module:
    """The graph of a model and a method: for images as the network reads them, its outputs and the map.

    The map is that of the target which the model's codec takes by default: the top class, the most probable label.

    Args:
        model: Whose network and codec.
        method: One of `ROWS`.
        conservative: Whether the map is of the network's detached form (`vitrail.nn.twin`), whose factors are constants
            to the gradient; the outputs are the same.

    Returns:
        A module of images (b, c, height, width) of the preprocessing's size, normalised, that gives (b, v) and
        (b, rows, columns), float32; it shares the network's parameters. Only the number of images is free.

    Raises:
        UsageError: A graph cannot hold the method, this network or its target.
    """
    rows, network = check_method(method), model.network
    if not isinstance(network, ViT):
        problem = f"a map by {method} reads the tokens of a ViT, and the network is none, but {type(network).__name__}"
        raise UsageError(problem, Hint(drop=["explain"]))
    if model.output.choose is None:
        raise UsageError(f"the outputs of the task {model.task.name} have nothing to explain", Hint(drop=["explain"]))
    size = model.preprocessing.size
    network = network if network.config.image == size else resize_network(network, size)
    images = torch.zeros(TRACED, network.config.channels, *size, device=model.device)
    grid, network = network.grid(images), twin(network, {Attention: _written_out})
    network = detached(network) if conservative else network
    places = "blocks.*.attention", "blocks.*.output" if method == "attcat" else last_output(network)

    def run(images: Images) -> tuple[Float[Tensor, "b v"], Float[Tensor, "b rows columns"]]:
        record = Record(*places, gradients=True)
        with torch.enable_grad():
            pixels = images.detach().requires_grad_()
            outputs = network(pixels, record)
            chosen = model.output.choose(outputs.detach())
            row = rows(_WholePass(network, record, chosen, chosen(outputs), pixels, grid))
        return outputs.detach(), on_grid(row.detach(), network.config.prefix, grid).contiguous()

    unable = "a part of this network or its codec cannot be written as a graph with its gradient"
    with evaluating(network), raised_as(UsageError, unable, Hint(drop=["explain"]), Exception):
        check_explainable(network, images, gradients=True)
        graph = _traced(run, images)
    given: Any = graph.graph.output_node().args[0]
    if any(type(each.meta["val"].shape[0]) is int for each in given):
        problem = "a part of this network or its codec reads the number of images as a plain number, which fixes it"
        raise UsageError(problem, Hint(drop=["explain"], text="or tensor.shape[0] in its code in place of len(tensor)"))
    return graph


def check_method(method: str) -> Row:
    """How the row of a method is made in a graph.

    Raises:
        UsageError: There is no such method, or a graph cannot hold it; names those that it can.
    """
    if method not in ROWS:
        problem = f"a map by {method} cannot be exported; those that can are by {', '.join(ROWS)}"
        raise UsageError(problem, Hint({"explain": nearest(method, ROWS) or DEFAULT}))
    return ROWS[method]


def _written_out(part: Any) -> nn.Module:
    """The part, with weights that are made as a record makes them: a graph has them once."""
    form = copy.copy(part)
    form.attend = lambda queries, keys, values, mask=None, dropout=0.0: attention_weights(queries, keys, mask) @ values
    return form


def _traced(run: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> torch.fx.GraphModule:
    """What torch does in `run`, as a graph in which the number of images is free."""
    from torch._decomp import get_decompositions
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second to import
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    plain: Any = get_decompositions([torch.ops.aten.silu_backward])  # which ONNX has no operator for
    axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (images.dim() - 1)]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    example = mode.from_tensor(images, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
    with sdpa_kernel(SDPBackend.MATH):  # the one whose gradient is made of plain products
        graph = make_fx(run, plain, "symbolic", _allow_non_fake_inputs=True)(example)
    if any(getattr(each.target, "_schema", None) and each.target._schema.is_mutable for each in graph.graph.nodes):
        graph = make_fx(functionalize(graph), tracing_mode="symbolic", _allow_non_fake_inputs=True)(example)
    _join_products(graph.graph)  # which, like the next line, is right where no tensor changes
    found = CSEPass()(graph)
    assert found is not None
    return found.graph_module


def _join_products(graph: torch.fx.Graph) -> None:
    """Write products of flattened factors as `matmul` again: half of the nodes, and of the time that an export takes.

    Torch multiplies (b, k, n, e) by (b, k, e, m) as a reshape of each to three axes, `bmm`, and a reshape back. None of
    these changes the order of the numbers, so shapes alone say which tensors may be multiplied as they are.
    """
    aten = torch.ops.aten
    for node in list(graph.nodes):
        batched = node.target is aten.bmm.default
        if not batched and node.target not in (aten.mm.default, aten.addmm.default):
            continue
        *bias, left, right = node.args
        for after in [each for each in node.users if each.target in (aten.view.default, aten._unsafe_view.default)]:
            axes, inner = _shape(after), _shape(right)
            with graph.inserting_before(after):
                first = _before_reshapes(graph, left, (*axes[:-1], inner[-2]))
                second = _before_reshapes(graph, right, (*axes[:-2], *inner[-2:])) if batched else right
                if first is not None and second is not None:
                    product = graph.call_function(aten.matmul.default, (first, second))
                    product = graph.call_function(aten.add.Tensor, (product, *bias)) if bias else product
                    product.meta["val"] = after.meta["val"]
                    after.replace_all_uses_with(product)
    graph.eliminate_dead_code()


def _shape(node: Any) -> tuple[str, ...]:
    """In words: their comparison settles nothing about a size that is free."""
    return tuple(map(str, node.meta["val"].shape))


def _before_reshapes(graph: torch.fx.Graph, node: Any, shape: tuple[str, ...]) -> Any:
    """The first tensor of this shape of which a node is a reshape, or itself; None where there is none."""
    aten, found = torch.ops.aten, None
    while True:
        found = node if _shape(node) == shape else found
        if node.target is aten.transpose.int and node.args[1:] == (1, 2) and len(_shape(node)) == 3 < len(shape):
            turned = _before_reshapes(graph, node.args[0], (*shape[:-2], shape[-1], shape[-2]))
            return found if turned is None else graph.call_function(aten.transpose.int, (turned, -2, -1))
        if node.target not in (aten.view.default, aten._unsafe_view.default, aten.clone.default, aten.expand.default):
            return found
        node = node.args[0]
