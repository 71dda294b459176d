# %% [markdown]
# # D3 · The same network in two spellings
#
# What you need: a little Python and torch, and what a patch, a token and attention are
# ([ten minutes](what_is_a_vit.md)). Nothing else has to be at hand.
#
# There is more than one right way to write each part of a ViT, and a wrong one next to it. A real tutorial, called *the
# document* here, shows several parts in two forms, in the notation of einops, where a change of shape says what each
# axis is:
#
# | step | one form | the other |
# |---|---|---|
# | (b, 3, 224, 224) to (b, 196, 768) | a convolution with kernel = stride = 16 | cut, flatten, linear map |
# | queries, keys, values | three maps | one map, cut in three |
# | head | the class token | the mean of all tokens |
#
# Between them: class token and learnt positions to (b, 197, 768), 12 blocks with an MLP of ratio 4, GELU and dropout, a
# residual wrapper around each branch, and 1000 classes.
#
# Two forms of one thing are a gift: each is the test of the other. One picture of the idea, for the patches:
#
#     convolution:  slide a 16 x 16 window by 16   -> 768 sums of 768 products
#     linear map:   cut 16 x 16 squares, flatten   -> 768 sums of the same 768 products, listed in another order
#
# This lesson makes both forms of each part from the same weights and looks at the difference. It should be the
# rounding of the last digits. In the document it often is not.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draw import drawing, heat, panels, strip
from lesson import largest, parameters, results, show
from parts import LinearPatchEmbedding, Patchify, convolution_to_linear, fuse, linear_to_convolution, reorder, split
from vitrail.nn import (
    SILENT,
    STANDARD,
    Attention,
    Parts,
    PatchEmbedding,
    Record,
    ViT,
    ViTConfig,
    attend,
)

RESULTS = results()
CONFIG = ViTConfig(image_size=32, patch_size=8, channels=3, classes=10, width=192, depth=2, heads=8)


def noise(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape)


def network_with(parts: Parts = STANDARD, config: ViTConfig = CONFIG) -> ViT:
    """The small network with other parts; its head, which would begin at zero, gets weights."""
    torch.manual_seed(0)
    network = ViT(config, parts)
    nn.init.normal_(network.head.weight, std=0.1)
    return network.eval()


# %% [markdown]
# ## The right form
#
# The goal in shapes, by one name of the table:

# %%
with torch.no_grad():
    base = ViT(ViTConfig.from_size("B/16")).eval()
    record = Record("tokens")
    logits = base(noise(1, 3, 224, 224), record=record)
print("tokens", tuple(record["tokens"].shape), "logits", tuple(logits.shape))
show("parameters.right", parameters(base), "numbers learnt by the right form")

# %% [markdown]
# ## Fault 1: the scale comes after the softmax
#
# Scaled dot-product attention is softmax(q k / sqrt(e)) v. The document takes the softmax first and divides its result.
# Then the rows of weights do not sum to 1, each head answers with a fraction of what it read, and the softmax itself
# gets scores whose size grows with the width: it picks one token and forgets the others. In one version it divides by
# the square root of the *whole width* where the head's would be due.
#
# The part goes into vitrail's network from outside.


# %%
class ScaledTooLate(nn.Module):
    """Attention that divides the weights, not the scores; by the whole width, or by the head's."""

    def __init__(self, width: int, heads: int, by_width: bool) -> None:
        super().__init__()
        self.maps = Attention(width, heads)
        self.scale = (width if by_width else width // heads) ** 0.5

    def weights(self, tokens: Tensor) -> Tensor:
        queries, keys, _ = self.maps.project(tokens)
        return (queries @ keys.transpose(-2, -1)).softmax(dim=-1) / self.scale

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        values = self.maps.project(tokens)[2]
        return self.maps.proj((self.weights(tokens) @ values).transpose(1, 2).flatten(2))


def row_sum(weights: Tensor) -> float:
    """What the rows sum to (all alike, or the assertion fails)."""
    sums = weights.detach().sum(-1)
    assert largest(sums - sums.mean()) < 1e-5
    return float(sums.mean())


def largest_weight(weights: Tensor) -> float:
    """The mean over all rows of the largest weight's share of its row."""
    return float((weights.amax(-1) / weights.sum(-1)).mean().detach())


tokens = noise(2, 197, 768)
torch.manual_seed(0)
late, too_wide = ScaledTooLate(768, 8, by_width=False), ScaledTooLate(768, 8, by_width=True)
record = Record()
with torch.no_grad():
    late.maps(tokens, record=record)  # the right attention, of the same weights
    whole = record["attention"]
show("late_scale", row_sum(too_wide.weights(tokens)), "rows sum to, divided by sqrt(768) after the softmax")
show("late_scale.head", row_sum(late.weights(tokens)), "rows sum to, divided by sqrt(96) after the softmax")
show("late_scale.right", row_sum(whole), "rows sum to, vitrail")
show("late_scale.largest", largest_weight(late.weights(tokens)), "share of the row in its largest weight, late scale")
show("late_scale.largest.right", largest_weight(whole), "the same, vitrail")

# %% [markdown]
# Attention of one head as a picture: how much the class token takes from each of 14 x 14 patches, in both forms from
# the same queries and keys. Scaled in time, the head listens to many patches. Scaled too late, the softmax has already
# chosen a few, and the others are lost.

# %%
with torch.no_grad():
    in_time, too_late = (weights[0, 0, 0, 1:].unflatten(0, (14, 14)) for weights in (whole, late.weights(tokens)))
panels(
    "What the class token reads in one head: spread over many patches when scaled in time, on a few when scaled late",
    [
        (f"before: largest {float(in_time.max()):.3f}", heat(in_time, side=224)),
        (f"after: largest {float(too_late.max()):.3f}", heat(too_late, side=224)),
    ],
)

# %% [markdown]
# Nothing warns, and it does not fail: the map after attention can learn to multiply by 28 again. Passed into the whole
# network, with the same numbers everywhere, the answer differs:


# %%
def late_network() -> ViT:
    """The small network with the faulty attention, and the numbers of the right one."""
    network = network_with(Parts(attention=lambda config: ScaledTooLate(config.width, config.heads, by_width=True)))
    state = {name.replace("attn.", "attn.maps."): value for name, value in network_with().state_dict().items()}
    network.load_state_dict(state)
    return network


images = noise(4, 3, 32, 32)
with torch.no_grad():
    show(
        "late_scale.network", largest(late_network()(images) - network_with()(images)), "logits differ by, same weights"
    )
show(
    "late_scale.parameters",
    parameters(late_network()) - parameters(network_with()),
    "parameters, late scale minus right",
)

# %% [markdown]
# ## Fault 2: the mask
#
# The document calls `mask_fill`, which tensors do not have, so any mask is an error. Written `masked_fill` it would
# still not work: that returns a new tensor, and the document throws it away. Only `masked_fill_`, or using what comes
# back, hides anything.


# %%
def weight_on_hidden(fill) -> float:
    """The largest weight on keys that a mask hides (the last three of ten)."""
    scores = noise(2, 4, 10, 10)
    hidden = torch.zeros(10, dtype=torch.bool)
    hidden[7:] = True
    return largest(fill(scores, hidden).softmax(-1)[..., 7:])


def error_of_a_mask() -> str:
    try:
        noise(2, 2).mask_fill(torch.eye(2).bool(), 0.0)
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "no error"


def thrown_away(scores: Tensor, hidden: Tensor) -> Tensor:
    scores.masked_fill(hidden, float("-inf"))
    return scores


def hidden_by_vitrail() -> float:
    """How much the answer changes when the keys and values that a mask hides change."""
    queries, keys, values = noise(3, 2, 4, 10, 8)
    seen = torch.ones(10, 10, dtype=torch.bool)
    seen[:, 7:] = False
    others = [torch.cat([part[:, :, :7], part[:, :, 7:] + 5], dim=2) for part in (keys, values)]
    return largest(attend(queries, *others, mask=seen) - attend(queries, keys, values, mask=seen))


show("mask", error_of_a_mask(), "with a mask")
show("mask.thrown_away", weight_on_hidden(thrown_away), "weight on hidden tokens, result thrown away")
show("mask.right", hidden_by_vitrail(), "change of vitrail's answer when what is hidden changes")

# %% [markdown]
# ## Fault 3: as printed, the rearranged patches have no linear map
#
# The second form of the patch embedding cuts and flattens, and stops. With patches of 16 x 16 x 3 = 768 pixels and a
# width of 768 the shapes agree by chance, so nothing warns: what enters the blocks are raw pixels. With the map, and
# the convolution's weights in the order in which the pixels are listed, both forms are one.


# %%
class OnlyRearranged(nn.Module):
    """Cut and flattened, as printed: nothing is learnt here."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patchify = Patchify(patch, flattening="h w c")

    def forward(self, images: Tensor) -> Tensor:
        return self.patchify(images)


def both_patch_maps() -> tuple[PatchEmbedding, LinearPatchEmbedding]:
    torch.manual_seed(0)
    convolution, linear = PatchEmbedding(3, 192, (8, 8)), LinearPatchEmbedding(3, 192, (8, 8), flattening="h w c")
    with torch.no_grad():
        linear.proj.weight.copy_(convolution_to_linear(convolution.proj.weight, "h w c"))
        linear.proj.bias.copy_(convolution.proj.bias)
    return convolution, linear


convolution, linear = both_patch_maps()
printed = network_with(Parts(embedding=lambda config: OnlyRearranged(8)))
with torch.no_grad():
    shape = tuple(printed.embed(images).shape)
    show(
        "patches", largest(OnlyRearranged(8)(images) - convolution(images)), "rearranged pixels against the convolution"
    )
    show("patches.right", largest(linear(images) - convolution(images)), "rearranged and mapped against it")
    wrong_order = F.linear(Patchify(8)(images), linear.proj.weight, linear.proj.bias)  # lists the channels first
    show("patches.order", largest(wrong_order - convolution(images)), "mapped, but listed in another order")
print("shapes agree:", shape == tuple(network_with().embed(images).shape), shape)
show("patches.learnt", parameters(OnlyRearranged(8)), "numbers learnt in the patch map, as printed")
show("patches.learnt.right", parameters(linear), "the same, with the map")
back = linear_to_convolution(linear.proj.weight, (8, 8), "h w c")
show("patches.back", largest(back - convolution.proj.weight), "weights there and back differ by")

# %% [markdown]
# The two listings of one small patch, 4 x 4 pixels in three colours: 48 numbers. Both strips have the same squares. A
# weight that belongs to the tenth red pixel meets another number in the other listing.

# %%
across, down = torch.linspace(0.2, 1, 4).expand(4, 4), torch.linspace(0.2, 1, 4)[:, None].expand(4, 4)
small_patch = torch.stack([across, down, across.flip(1)])


def listed(flattening) -> Tensor:
    """The patch's 48 numbers (48, 3), each in the colour of its channel."""
    pure = torch.diag_embed(small_patch.flatten(1).T).unflatten(0, (4, 4)).permute(3, 2, 0, 1)  # colour, channel, h, w
    return torch.stack([Patchify(4, flattening=flattening)(colour)[0] for colour in pure], dim=-1)


panels(
    "A patch of three colours, and its 48 numbers in two orders: colour by colour, and pixel by pixel",
    [("the patch", drawing(small_patch, 80))],
    [("c h w: colour by colour, as a convolution lists them", strip(listed("c h w")))],
    [("h w c: pixel by pixel", strip(listed("h w c")))],
)

# %% [markdown]
# ## Fault 4: the order of the fused map
#
# One map gives queries, keys and values at once: 3 x heads x e rows. Everyone's weights list them (qkv, head, e): all
# queries first. The document cuts its rows as (head, e, qkv): query, key and value of one number side by side. Trained
# from scratch either order is fine, since the rows have no meaning yet. With weights from elsewhere the
# document's order mixes queries with keys and values, and the shapes fit.


# %%
class OtherOrder(nn.Module):
    """Attention whose fused rows are (head, e, qkv), from a state of the usual order taken as it is."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        rows = self.qkv(tokens).unflatten(-1, (self.heads, -1, 3))
        queries, keys, values = rows.permute(4, 0, 2, 1, 3)
        return self.proj(attend(queries, keys, values).transpose(1, 2).flatten(2))


def with_other_order(reordered: bool) -> ViT:
    """The network with that attention, and everyone's weights: as they are, or with their rows put in its order."""
    network = network_with(Parts(attention=lambda config: OtherOrder(config.width, config.heads)))
    state = network_with().state_dict()
    for name in state:
        if "qkv" in name and reordered:
            state[name] = reorder(state[name], CONFIG.heads, "qkv head dim", "head dim qkv")
    network.load_state_dict(state)
    return network


with torch.no_grad():
    expected = network_with()(images)
    show(
        "fused_order",
        largest(with_other_order(False)(images) - expected),
        "logits differ by, foreign weights as they are",
    )
    show("fused_order.right", largest(with_other_order(True)(images) - expected), "logits differ by, rows put in order")

# %% [markdown]
# The rows of a fused map of two heads with four numbers each: red is a query, green a key, blue a value; the second
# head is darker. Who cuts such a map in three must know which of these it is.


# %%
def rows_in(order) -> Tensor:
    """The colour of each of 24 rows (24, 3): red, green and blue for queries, keys and values, darker in head 2."""
    usual = torch.eye(3).repeat_interleave(8, 0) * torch.tensor([1.0, 0.5]).repeat_interleave(4).repeat(3)[:, None]
    return reorder(usual, 2, "qkv head dim", order)


panels(
    "The rows of a fused map in two orders: all queries, then keys, then values; or the three of each number together",
    [("everyone's: qkv, head, dim", strip(rows_in("qkv head dim"), 18))],
    [("the document's: head, dim, qkv", strip(rows_in("head dim qkv"), 18))],
)

# %% [markdown]
# Separate maps are the same network again: cut the fused rows in three, and put them together again.


# %%
class SeparateMaps(nn.Module):
    """Attention with three maps, made from a fused one."""

    def __init__(self, fused: Attention) -> None:
        super().__init__()
        weights, biases = split(fused.qkv.weight, fused.heads), split(fused.qkv.bias, fused.heads)
        self.maps, self.proj, self.heads = list(zip(weights, biases, strict=True)), fused.proj, fused.heads

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (F.linear(tokens, *one).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.maps)
        return self.proj(attend(q, k, v).transpose(1, 2).flatten(2))


with torch.no_grad():
    fused = late.maps
    show(
        "separate_maps.right", largest(SeparateMaps(fused)(tokens) - fused(tokens)), "three maps against one, differ by"
    )
    again = fuse(*split(fused.qkv.weight, fused.heads), fused.heads)
    show("separate_maps.back", largest(again - fused.qkv.weight), "weights there and back differ by")

# %% [markdown]
# ## Not quite a fault: the residual that adds in place
#
# The document's wrapper computes `x = f(x)` and then `x += saved`. That writes into what `f` returned. As assembled,
# `f` ends in a linear map or dropout and returns a fresh tensor, so nothing happens: answers and gradients are equal.
# It bites when `f` returns its input (then the caller's tensor doubles), and when `f` ends in something whose backward
# pass needs its own result, such as ReLU, a sigmoid or a softmax: then training stops with an error.
#
# As printed the class has no name, either: that is a syntax error and cannot be overlooked.


# %%
class InPlaceResidual(nn.Module):
    """As the document adds."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        saved = tokens
        tokens = self.inner(tokens)
        tokens += saved
        return tokens


def branch(last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), last)


def apart_as_assembled() -> float:
    """The largest difference of answers and gradients, in place against a new sum."""
    answers = []
    f = branch(nn.Dropout(0.0))
    for residual in (InPlaceResidual(f), lambda x: x + f(x)):
        tokens = noise(2, 5, 16).requires_grad_()
        answer = residual(tokens)
        answers.append((answer, torch.autograd.grad(answer.square().sum(), tokens)[0]))
    return max(largest(one - other) for one, other in zip(*answers, strict=True))


def change_of_the_callers_tensor(residual) -> float:
    tokens = noise(2, 5, 16)
    before = tokens.clone()
    residual(tokens)
    return largest(tokens - before) / largest(before)


def error_in_training(last: nn.Module) -> str:
    answer = InPlaceResidual(branch(last))(noise(2, 5, 16))
    try:
        answer.sum().backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:84]}"
    return "no error"


def error_of_a_class_without_a_name() -> str:
    try:
        compile("class (nn.Module):\n    pass", "as printed", "exec")
    except SyntaxError:
        return "SyntaxError"
    return "no error"


show("in_place.harmless", apart_as_assembled(), "in place against a new sum, as assembled")
show(
    "in_place",
    change_of_the_callers_tensor(InPlaceResidual(nn.Identity())),
    "change of the caller's tensor, f = identity",
)
show("in_place.right", change_of_the_callers_tensor(lambda x: x + nn.Identity()(x)), "the same, a new sum")
show("in_place.dropout", error_in_training(nn.Dropout(0.1)), "training, f ends in dropout")
show("in_place.sigmoid", error_in_training(nn.Sigmoid()), "training, f ends in a sigmoid")
show("no_name", error_of_a_class_without_a_name(), "`class (nn.Module):`")

# %% [markdown]
# ## Fault 5: a mean that takes in the class token
#
# The document builds only the mean over tokens (reading the class token is a comment in its code), and takes it over
# all of them, the class token included. That token is no part of the picture. With 196 patches it is one of 197, and
# with few patches more. Pooling is a part, so both come in from outside.


# %%
class MeanOfAll(nn.Module):
    """The mean over every token, the prefix included."""

    def forward(self, tokens: Tensor, prefix: int) -> Tensor:
        return tokens.mean(dim=1)


MEAN = ViTConfig(image_size=32, patch_size=8, channels=3, classes=10, width=192, depth=2, heads=8, pooling="mean")


def share_of_the_class_token(pooling: nn.Module, patches: int) -> float:
    """How much of the pooled vector comes from the class token: its token is 1, the patches are 0."""
    tokens = torch.zeros(1, 1 + patches, 1)
    tokens[:, 0] = 1
    return float(pooling(tokens, 1))


mean_of_patches = network_with(config=MEAN).pool
show("mean", share_of_the_class_token(MeanOfAll(), 196), "share of the class token in the mean, 196 patches")
show("mean.few", share_of_the_class_token(MeanOfAll(), 16), "the same, 16 patches")
show("mean.right", share_of_the_class_token(mean_of_patches, 196), "the same, vitrail's mean")
with torch.no_grad():
    all_tokens = network_with(Parts(pooling=lambda config: MeanOfAll()), MEAN)
    show("mean.network", largest(all_tokens(images) - network_with(config=MEAN)(images)), "logits differ by")

# %% [markdown]
# One thing here is *not* a fault: the document normalises after the mean, vitrail before it. Both are in use (masked
# autoencoders fine-tune with the norm after the mean). They are two networks, not one in two spellings:


# %%
def norm_first_against_mean_first() -> float:
    tokens, norm = noise(2, 16, 192) * torch.linspace(0.1, 3, 16)[:, None], nn.LayerNorm(192)
    return largest((norm(tokens).mean(1) - norm(tokens.mean(1))).detach())


show("norm_of_mean", norm_first_against_mean_first(), "mean of norms against norm of the mean")

# %% [markdown]
# ## Take away
#
# - Two forms of one part are the best test there is: same weights in, same numbers out, to the last digits.
# - Attention weights are shares. Look at the sums of their rows once.
# - A shape that fits by chance (16 x 16 x 3 = 768) proves nothing.
# - Before weights from elsewhere are loaded, ask in which order their rows stand. Shapes cannot tell.
# - `x.masked_fill(...)` returns, `x.masked_fill_(...)` writes. `x += y` writes, too, and into somebody's tensor.
# - A mean over tokens is over those that show something.
