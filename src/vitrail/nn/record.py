"""What one run of a network leaves behind: named intermediates, kept only on request.

A network takes `record=SILENT` and passes it down. The silent record keeps nothing and costs nothing, so no code
branches on it. A `Record` keeps the tensors under public names:

    tokens                      input of the first block                 (b, n, d)
    blocks.3.input              input of block 3                         (b, n, d)
    blocks.3.norm1              input of attention: the same, normalised (b, n, d)
    blocks.3.queries, .keys     per head                                 (b, k, n, e)
    blocks.3.attention          the weights softmax(q k^T / sqrt(e))     (b, k, n, n)
    blocks.3.values             per head                                 (b, k, n, e)
    blocks.3.attended           attention times values, per head         (b, k, n, e)
    blocks.3.attn_out           what attention adds                      (b, n, d)
    blocks.3.mlp                what the MLP adds                        (b, n, d)
    blocks.3.output             output of block 3                        (b, n, d)
    pooled                      input of the head                        (b, d)
    logits                                                               (b, classes)

A network that generates text keeps the same under `encoder.`, and beside it, for t target and m memory tokens:

    memory                      output of the encoder                    (b, m, d)
    decoder.tokens              input of the decoder's first block       (b, t, d)
    decoder.blocks.3.self.*     attention to earlier target tokens: `.queries`, `.attention` (b, k, t, t) and so on
    decoder.blocks.3.cross.*    attention to the memory: `.attention` is (b, k, t, m)
    decoder.blocks.3.input, .mlp, .output                                (b, t, d)
    logits                                                               (b, t, v)

The attention weights are never made while the network runs: the fused kernel always runs, and the weights are
computed from the queries and keys when they are read, for the requested blocks, heads and query rows. So is their
gradient: with O = A V, the chain rule gives  d y / d A = (d y / d O) V^T  exactly. In train mode with attention
dropout the kernel does not report which weights it dropped: `attention` is then the weights without dropout, whose rows
sum to 1, `attended` is the kernel's output with dropout, and the gradient is with respect to the weights after dropout.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.errors import UsageError, check_index, check_kinds, counted, nearest
from vitrail.text import short_repr

Tokens = Float[Tensor, "b n d"]
Queries = Float[Tensor, "b k n e"]
Keys = Float[Tensor, "b k m e"]
Weights = Float[Tensor, "b k n m"]
Mask = Bool[Tensor, "*#b #n #m"]  # True where a query may see a key


class Silent:
    """The record that keeps nothing: the default of every network."""

    def at(self, name: str) -> "Silent":
        """Itself: nothing is kept under any name."""
        return self

    def keep(self, name: str, tensor: Tensor) -> None:
        """Do nothing."""

    def keep_attention(self, queries: Queries, keys: Keys, values: Keys, attended: Queries, mask: Mask | None) -> None:
        """Do nothing."""


SILENT = Silent()


class Attended(NamedTuple):
    """What one attention did, enough to make its weights and their gradient."""

    queries: Queries
    keys: Keys
    values: Keys
    attended: Queries
    mask: Mask | None

    __repr__ = short_repr

    @property
    def attention(self) -> Weights:
        """The attention weights of all heads and query rows."""
        return self.weights()

    def weights(
        self, heads: Sequence[int] | slice | None = None, queries: Sequence[int] | slice | None = None
    ) -> Weights:
        """The attention weights of these heads and query rows; of all when None."""
        q, k, mask = self.queries, self.keys, self.mask
        if heads is not None:
            q, k = q[:, heads], k[:, heads]
            mask = mask[..., heads, :, :] if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1 else mask
        if queries is not None:
            q = q[:, :, queries]
            mask = mask[..., queries, :] if mask is not None and mask.shape[-2] > 1 else mask
        return attention_weights(q, k, mask)


PARTS = ("attention", *Attended._fields[:4])  # what can be read of an attention, by name


def attention_weights(queries: Queries, keys: Keys, mask: Mask | None = None) -> Weights:
    """softmax(Q K^T / sqrt(e)); a row whose mask hides every key is all zeros.

    Args:
        queries: (b, k, n, e), k heads of e numbers.
        keys: (b, k, m, e).
        mask: True where a query may see a key; broadcast to (b, k, n, m).
    """
    scores = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    if mask is None:
        return scores.softmax(dim=-1)
    sees_any = mask.any(dim=-1, keepdim=True)
    return scores.masked_fill(~mask & sees_any, -torch.inf).softmax(dim=-1) * sees_any


def weights_gradient(at_attended: Queries, values: Keys) -> Weights:
    """The gradient of the attention weights, d y / d A = (d y / d O) V^T, of the heads and rows that are passed.

    Args:
        at_attended: (b, k, n, e), the gradient d y / d O of what was attended.
        values: (b, k, m, e).
    """
    return at_attended @ values.transpose(-2, -1)


class Record:
    """Keeps what a network computes, by name; read it like a dict: `record["blocks.11.attention"]`.

    Args:
        *names: Which names to keep, as shell patterns (`"blocks.11.*"`, `"pooled"`); all when none is passed. A
            record does not know the network: a name that it lacks is noticed when it is read (`run_with_record`: now).
        gradients: Keep the tensors inside the graph, so that `gradient` and `torch.autograd.grad` can reach them.
            Otherwise they are detached. The logits have the same bits either way.
    """

    def __init__(self, *names: str, gradients: bool = False) -> None:
        self._patterns = names
        self._wild = [name for name in names if "*" in name or "?" in name or "[" in name]
        self._gradients = gradients
        self._place = ""
        self._tensors: dict[str, Tensor] = {}
        self._attentions: dict[str, Attended] = {}

    # ---- written by networks

    def at(self, name: str) -> "Record":
        """The same record, whose names now start with `name`."""
        inner = Record(*self._patterns, gradients=self._gradients)
        inner._place = f"{self._place}{name}."
        inner._tensors, inner._attentions = self._tensors, self._attentions
        return inner

    def keep(self, name: str, tensor: Tensor) -> None:
        """Keep `tensor` under `name` if that was requested."""
        name = self._place + name
        if self._wanted(name):
            self._tensors[name] = self._held(tensor)

    def keep_attention(self, queries: Queries, keys: Keys, values: Keys, attended: Queries, mask: Mask | None) -> None:
        """Keep what one attention did; its weights are made later, when they are read."""
        if any(self._wanted(self._place + part) for part in PARTS):
            held = self._held
            self._attentions[self._place] = Attended(held(queries), held(keys), held(values), held(attended), mask)

    def _wanted(self, name: str) -> bool:
        if not self._patterns or name in self._patterns:  # a compiler follows this far, and not into patterns
            return True
        return len(self._wild) > 0 and any(fnmatchcase(name, pattern) for pattern in self._wild)

    def _held(self, tensor: Tensor) -> Tensor:
        return tensor if self._gradients else tensor.detach()

    # ---- read by people

    def __repr__(self) -> str:
        """How many names it holds, and some of them with their shapes."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        shapes |= {f"{place}attended": tuple(kept.attended.shape) for place, kept in self._attentions.items()}
        shown = [f"  {name} {shape}" for name, shape in (*list(shapes.items())[:2], *list(shapes.items())[2:][-2:])]
        return "\n".join([f"Record of {len(list(self))} names{', among them' * bool(shown)}", *shown])

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name; attention weights (b, k, n, n) are computed now.

        Raises:
            UsageError: If nothing was kept under that name; the nearest kept name is offered.
        """
        check_kinds(name=(name, str))
        if name in self._tensors:
            return self._tensors[name]
        place, _, part = name.rpartition(".")
        kept = self._attentions.get(f"{place}." if place else "") if self._wanted(name) else None
        if kept is None or part not in PARTS:
            raise self._missing(name)
        return getattr(kept, part)

    def __contains__(self, name: str) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        """Every name that can be read."""
        yield from self._tensors
        for place in self._attentions:
            yield from (place + part for part in PARTS if self._wanted(place + part))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def attentions(self) -> tuple[str, ...]:
        """The places that attended, in the order in which they ran: `("blocks.0", "blocks.1", ...)`."""
        return tuple(place.removesuffix(".") for place in self._attentions)

    @typed
    def attention(self, name: str, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None) -> Weights:
        """Attention weights of one attention, only for the requested heads and query rows.

        Args:
            name: Of the block, such as `"blocks.11"`.
            heads: Indices of heads; all when None.
            queries: Indices of query tokens (0 is the class token where there is one); all when None.

        Returns:
            Weights (b, heads, rows, keys); each row sums to 1, or to 0 where its mask hides all keys.
        """
        kept = self.kept(name)
        _, count, rows, _ = kept.queries.shape
        for argument, chosen, most in (("heads", heads, count), ("queries", queries, rows)):
            for index in () if chosen is None else chosen:
                check_index(argument, index, most)
        return kept.weights(heads, queries)

    @typed
    def gradient(self, of: Tensor, *places: str, keep_graph: bool = False) -> dict[str, Weights]:
        """d of / d attention weights, by d y / d A = (d y / d O) V^T; no parameter's `.grad` is touched.

        Args:
            of: A scalar of the same run, such as `logits[:, 3].sum()` (images do not mix, so the sum over the batch
                gives every image its own gradient).
            places: Which attentions, such as `"blocks.11"`; all when none is passed.
            keep_graph: Keep the graph for a further call.

        Returns:
            One gradient (b, k, n, m) for each place.

        Raises:
            UsageError: If this record was not made with `gradients=True`, or the run left no graph.
        """
        arriving = self.attended_gradient(of, *places, keep_graph=keep_graph)
        return {place: weights_gradient(each, self.kept(place).values.detach()) for place, each in arriving.items()}

    def attended_gradient(self, of: Tensor, *places: str, keep_graph: bool = False) -> dict[str, Queries]:
        """d of / d attended: small, and enough to make the gradient of any heads and rows by `weights_gradient`.

        Args:
            of: As in `gradient`.
            places: As in `gradient`.
            keep_graph: As in `gradient`.

        Returns:
            One gradient (b, k, n, e) for each place; zeros where `of` does not depend on it.

        Raises:
            UsageError: As in `gradient`.
        """
        if not self._gradients:
            problem = "this record was made without gradients"
            raise UsageError(problem, "Record(gradients=True), and run the network again")
        if not of.requires_grad:
            problem = "the network ran without a graph (torch.no_grad, or every parameter is frozen)"
            raise UsageError(problem, "network(images.requires_grad_(), record=record) outside torch.no_grad()")
        kept = {place: self.kept(place).attended for place in places or self.attentions()}
        arriving = torch.autograd.grad(of, list(kept.values()), retain_graph=keep_graph, materialize_grads=True)
        return dict(zip(kept, arriving, strict=True))

    def kept(self, name: str) -> Attended:
        """Queries, keys, values, output and mask of one attention.

        Args:
            name: Of the block, such as `"blocks.11"`.

        Raises:
            UsageError: If no attention was kept there.
        """
        if f"{name}." not in self._attentions:
            raise self._missing(name)
        return self._attentions[f"{name}."]

    def _missing(self, name: str) -> UsageError:
        names = [*self, *self.attentions()]
        guess = nearest(name, names)
        if not names:
            problem = f"this record is empty, so it has no '{name}'"
            return UsageError(problem, "network(images, record=record)")
        problem = f"'{name}' is not in this record, which has {counted(len(names), 'name')}"
        return UsageError(problem, f"record['{guess}']" if guess else f"one of {', '.join(names[:4])}, ...")


AnyRecord = Record | Silent


def run_with_record(
    network: nn.Module, inputs: Tensor | tuple[Tensor, ...], *names: str, gradients: bool = False
) -> tuple[Tensor, Record]:
    """Run a network once, in its current mode: its logits, and what it computed on the way.

        logits, record = run_with_record(network, images, "blocks.*.attention")
        record["blocks.11.attention"]

    Args:
        network: Any that takes a record: a `ViT`, a `Transformer`, an `ImageToSequence`.
        inputs: What it reads: images (b, c, h, w), or a tuple where it reads more, such as (source, target).
        *names: What to keep, as in `Record`: names or shell patterns; everything when none is passed.
        gradients: Whether both stay inside the graph, for `Record.gradient` and `torch.autograd.grad`; else the run
            leaves no graph.

    Raises:
        UsageError: If the inputs do not fit, or a name is none that this network keeps.
    """
    record, read = Record(*names, gradients=gradients), inputs if isinstance(inputs, tuple | list) else (inputs,)
    check_kinds(network=(network, nn.Module), inputs=(next(iter(read), None), Tensor))
    with torch.set_grad_enabled(gradients):
        logits = network(*read, record=record)
    idle = [name for name in names if not any(fnmatchcase(kept, name) for kept in record)]
    if idle:
        raise UsageError(f"this network has no intermediate called '{idle[0]}'", "no names at all, and list(record)")
    return logits, record
