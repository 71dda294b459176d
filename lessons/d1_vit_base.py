# %% [markdown]
# # D1 · ViT-Base from a figure, four equations and a table
#
# What you need: a little Python and torch, and what a patch, a token and attention are ([ten
# minutes](what_is_a_vit.md)). Nothing else has to be at hand, not even the paper ("An image is worth 16x16 words",
# 2020): what is used of it stands here.
#
# The lesson builds ViT-Base, the network of that paper, and builds it again with eight mistakes of a real tutorial,
# called *the document* here, which read the paper's first figure, its four equations and one row of its table.
#
# | step | shape |
# |---|---|
# | pictures | (b, 3, 224, 224) |
# | a convolution with kernel = stride = 16 | (b, 768, 14, 14) |
# | the grid in reading order | (b, 196, 768) |
# | class token in front, positions added | (b, 197, 768) |
# | 12 blocks: 12 heads of 64, MLP 768 -> 3072 -> 768, dropout 0.1 | (b, 197, 768) |
# | norm, the class token, a linear map | (b, 1000) |
#
# One block in words. The straight line on top is the whole point of a residual network: what comes in goes on
# unchanged, and each branch only adds to it.
#
#     x ----+--------------------------(+)----+---------------------(+)----> x
#           |                           ^     |                      ^
#           +--> norm --> attention ----+     +--> norm --> MLP -----+
#
# The document's network is *blind*: its answer does not depend on the picture. Every shape is right, nothing warns, and
# the probabilities sum to 1. First the right form, then why.

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draw import curves, drawing, heat, panels
from lesson import largest, parameters, pictures, results, show
from vitrail.nn import (
    MLP,
    SILENT,
    Attention,
    Branches,
    EncoderBlock,
    Parts,
    PatchEmbedding,
    Record,
    ViT,
    ViTConfig,
    features,
)

RESULTS = results()


def coloured_noise(count: int = 2) -> Tensor:
    """Pictures (count, 3, 224, 224) with something to see in every patch."""
    torch.manual_seed(1)
    return torch.randn(count, 3, 224, 224)


# %% [markdown]
# ## The right form
#
# The row of the table is a name: `B/16` is size B with patches of 16 x 16 pixels. The record shows what passes through.


# %%
def small_form(width: int = 64, depth: int = 2, heads: int = 4) -> ViTConfig:
    """The same network on pictures of 28 x 28, small enough for many experiments."""
    return ViTConfig(image_size=28, patch_size=7, channels=1, classes=10, width=width, depth=depth, heads=heads)


def with_a_head_that_answers(network: ViT) -> ViT:
    """A fresh vitrail network answers zero for every class (its head begins at zero); this one does not."""
    torch.manual_seed(2)
    nn.init.normal_(network.head.weight, std=network.config.width**-0.5)
    return network.eval()


torch.manual_seed(0)
base = with_a_head_that_answers(ViT(ViTConfig.from_size("B/16")))
show("parameters.right", parameters(base), "numbers learnt by B/16")
record = Record("tokens", "blocks.0.output", "blocks.11.attention", "pooled")
with torch.no_grad():
    answer = base(coloured_noise(), record=record)
for name in record:
    print(f"{name:20} {tuple(record[name].shape)}")
print(f"{'logits':20} {tuple(answer.shape)}")

# %% [markdown]
# ## The document's form
#
# Here it is once as a whole, as an assembly of its own, since most faults are in how the parts are put together. The
# sections below take them one by one.


# %%
class AlongTheBatch(nn.Module):
    """torch's attention without `batch_first=True`: it reads (b, n, d) as b tokens of n sequences."""

    def __init__(self, width: int, heads: int = 4) -> None:  # the document's default of 4, where the model has 12
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


class NormalisedResidual(Branches):
    """norm(x) + branch(norm(x)): the order of the document's block."""

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        tokens = normed + self.mix(normed, SILENT, None)
        normed = self.norm2(tokens)
        return normed + self.transform(normed, SILENT)


class TwiceMapped(nn.Module):
    """The convolution, and one more linear map that the paper does not have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = PatchEmbedding(3, width, (16, 16))
        self.linear = nn.Linear(768, 768)  # the number stands in the document's code

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.patches(images))


class AsWritten(nn.Module):
    """D1's model: every fault in its place."""

    def __init__(self, image_size: int = 224, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.embed = TwiceMapped(width)  # nobody reads image_size
        parts = Parts(
            norm=lambda config: nn.LayerNorm(width),
            attention=lambda config: AlongTheBatch(width, heads),
            mlp=lambda config, activation: MLP(width, 4 * width, nn.ReLU, dropout=0.1),
        )
        config = ViTConfig(width=width, heads=heads)
        blocks = (NormalisedResidual(config, parts) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images)
        class_tokens = torch.randn(len(images), 1, tokens.shape[-1])
        tokens = torch.cat([class_tokens, tokens], dim=1)
        tokens = tokens + torch.randn(tokens.shape[1:])
        return self.head(self.blocks(tokens)[:, 0]).softmax(dim=-1)


torch.manual_seed(0)
as_written = AsWritten().eval()
show("parameters", parameters(as_written), "numbers learnt by the document's form")

# %% [markdown]
# The two counts differ by 438,528: the second linear map has 590,592 numbers too many, class token and positions
# (768 + 197 x 768 = 152,064) are missing.
#
# ## Fault 1: the class token and the positions are made in the forward pass
#
# They are drawn anew at every call, so they are no parameters: nothing saves them, nothing moves them, nothing learns
# them. The same picture gets another answer each time.


# %%
def two_calls(network: nn.Module) -> float:
    """The largest difference of two answers to the same pictures, in probability."""
    torch.manual_seed(3)
    with torch.no_grad():
        return largest(as_probabilities(network) - as_probabilities(network))


def as_probabilities(network: nn.Module) -> Tensor:
    answers = network(two_pictures)
    return answers.softmax(dim=-1) if isinstance(network, ViT) else answers


two_pictures = coloured_noise()
learnt = sum(p.numel() for name, p in base.named_parameters() if name in ("cls_token", "pos_embed"))
show("fresh_tokens", two_calls(as_written), "two calls with the same pictures differ by, document")
show("fresh_tokens.right", two_calls(base), "the same, vitrail")
own = sum(p.numel() for p in as_written.parameters(recurse=False))
show("fresh_tokens.learnt", own, "numbers learnt in token and positions, document")
show("fresh_tokens.learnt.right", learnt, "the same, vitrail")

# %% [markdown]
# ## Fault 2: attention along the batch, and a network that is blind
#
# `nn.MultiheadAttention` wants (tokens, batch, width) unless it is told `batch_first=True`. Given (b, n, d) it takes
# the pictures for tokens: the class token of a picture looks at the class tokens of the *other pictures*, and never at
# a patch. Only class tokens reach the head, and they are drawn at random. So, with the same draw, black pictures get
# the same bits as any others, and no gradient reaches a pixel.


# %%
def sees_the_picture(network: nn.Module, images: Tensor) -> tuple[bool, float]:
    """Whether black pictures get the same bits with the same draw, and the largest gradient at a pixel."""
    images = images.clone().requires_grad_()
    torch.manual_seed(3)
    answers = network(images)
    (gradient,) = torch.autograd.grad(answers[:, 0].sum(), images)
    torch.manual_seed(3)
    with torch.no_grad():
        black = network(torch.zeros_like(images))
    return torch.equal(answers, black), largest(gradient)


same, gradient = sees_the_picture(as_written, two_pictures)
show("blind", same, "black pictures get the same bits, document")
show("blind.gradient", gradient, "largest gradient at a pixel, document")
same, gradient = sees_the_picture(base, two_pictures)
show("blind.right", same, "black pictures get the same bits, vitrail")
show("blind.gradient.right", gradient, "largest gradient at a pixel, vitrail")

# %% [markdown]
# Is it this part alone? Put it alone into vitrail's network, from outside: everything else is right, the class token is
# learnt. The network is still blind, and gives every picture the same answer.
#
# And what do the patches do? They do mix, with the patch at the same place of the other pictures.


# %%
def only_this_part() -> ViT:
    torch.manual_seed(0)
    parts = Parts(attention=lambda config: AlongTheBatch(config.width, config.heads))
    return with_a_head_that_answers(ViT(small_form(), parts))


def small_right_form() -> ViT:
    torch.manual_seed(0)
    return with_a_head_that_answers(ViT(small_form()))


def leaks(network: ViT) -> float:
    """How much the patch tokens of the first picture change when only the second picture does."""
    torch.manual_seed(4)
    one, two, other = torch.randn(3, 1, 1, 28, 28)
    with torch.no_grad():
        before, after = (features(network, torch.cat([one, second])).patches[0] for second in (two, other))
    return largest(after - before)


torch.manual_seed(5)
noise = torch.randn(8, 1, 28, 28)
with torch.no_grad():
    show(
        "batch_attention",
        largest(only_this_part()(noise).diff(dim=0)),
        "eight pictures: answers differ by, this part",
    )
    show("batch_attention.right", largest(small_right_form()(noise).diff(dim=0)), "the same, vitrail's attention")
show("batch_attention.gradient", sees_the_picture(only_this_part(), noise)[1], "largest gradient at a pixel, this part")
show("batch_attention.leak", leaks(only_this_part()), "change of a picture's patches by another picture, this part")
show("batch_attention.leak.right", leaks(small_right_form()), "the same, vitrail's attention")

# %% [markdown]
# As a picture: eight pictures go through the network together, and one after the other is changed (columns). How far do
# the patches of each picture (rows) move? In the right form only on the diagonal: every picture for itself. Along the
# batch, everyone's patches move with everyone's.


# %%
@torch.no_grad()
def who_moves_whom(network: ViT) -> Tensor:
    """(8, 8): how far the patches of picture i move when picture j is changed; the root, to see small ones."""
    before, moved = features(network, noise).patches, torch.zeros(8, 8)
    for changed in range(8):
        others = noise.clone()
        others[changed] = another
        moved[:, changed] = (features(network, others).patches - before).abs().flatten(1).amax(1)
    return moved.sqrt()


torch.manual_seed(6)
another = torch.randn(1, 28, 28)
panels(
    "Which of eight pictures (rows) moves when one of them (columns) is changed: all of them, or only itself",
    [
        ("along the batch", heat(who_moves_whom(only_this_part()))),
        ("along the tokens", heat(who_moves_whom(small_right_form()))),
    ],
)

# %% [markdown]
# The document never trains. Had it, one number would have told:


# %%
def trained_accuracy(network: ViT) -> float:
    """Accuracy in percent on 1,000 test digits after one pass over 8,000."""
    images, labels, _ = pictures("train", 8000)
    test_images, test_labels, _ = pictures("test", 1000)
    optimizer = torch.optim.Adam(network.train().parameters(), lr=1e-3)
    for part, answers in zip(images.split(64), labels.split(64), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(network(part), answers).backward()
        optimizer.step()
    with torch.no_grad():
        return 100 * float((network.eval()(test_images).argmax(1) == test_labels).float().mean())


show("data", pictures("test", 1)[2], "the pictures come from")
blind, seeing = only_this_part(), small_right_form()
show("trained", trained_accuracy(blind), "percent right after one pass, attention along the batch")
show("trained.right", trained_accuracy(seeing), "percent right, along the tokens")

# %% [markdown]
# Where does the answer of the trained networks come from? A picture of the gradient: for each pixel, how much the logit
# of the named digit changes when the pixel does. For the blind network it is not small but exactly zero, everywhere.


# %%
def gradient_at_the_pixels(network: ViT, images: Tensor) -> Tensor:
    """|d logit / d pixel| of the top class, (28, 28)."""
    images = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network(images)[0].max(), images)
    return gradient[0, 0].abs()


one_digit = pictures("test", 1)[0]
panels(
    "A test digit, and the gradient of the answer at its pixels: zero for the blind network, not for the other",
    [
        ("the picture", drawing(one_digit[0])),
        ("gradient, along the batch", drawing(gradient_at_the_pixels(blind, one_digit))),
        ("gradient, along the tokens", heat(gradient_at_the_pixels(seeing, one_digit))),
    ],
)

# %% [markdown]
# ## Fault 3: the residual adds to the normalised input
#
# norm(x) + branch(norm(x)) instead of x + branch(norm(x)). The two branches of vitrail's block are methods that any
# order can call, so the faulty order comes in from outside. With branches that say nothing (last weights zero), a block
# should hand on what it got. The faulty one returns a normalised token: whatever its length was, it is now sqrt(768) =
# 27.71, and twelve blocks later the same. The straight line of the picture above is cut in every block.


# %%
def silent_block(kind: type[Branches]) -> Branches:
    """A block of width 768 whose branches add nothing."""
    block = kind(ViTConfig.from_size("B/16"))
    for last in (block.attn.proj, block.mlp.fc2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return block


def length_after_twelve(block: Branches) -> float:
    """The length of a token that was 100 long, after twelve times this block."""
    torch.manual_seed(0)
    token = torch.randn(1, 1, 768)
    token = 100 * token / token.norm()
    with torch.no_grad():
        for _ in range(12):
            token = block(token)
    return float(token.norm())


show(
    "lost_identity",
    length_after_twelve(silent_block(NormalisedResidual)),
    "length of a token of 100, document's order",
)
show("lost_identity.right", length_after_twelve(silent_block(EncoderBlock)), "the same, the paper's order")

# %% [markdown]
# Block by block: in the paper's order the length stays as it was, in the document's the first block throws it away.


# %%
@torch.no_grad()
def lengths(block: Branches) -> list[float]:
    """The length of a token before the first block and after each of twelve."""
    torch.manual_seed(0)
    token = torch.randn(1, 1, 768)
    found = [100 * token / token.norm()]
    for _ in range(12):
        found.append(block(found[-1]))
    return [float(each.norm()) for each in found]


through = {"paper": lengths(silent_block(EncoderBlock)), "document": lengths(silent_block(NormalisedResidual))}
panels(
    "The length of a token through twelve silent blocks: kept by the paper's order, lost in the document's first block",
    [("length of a token", curves(through, list(range(13)), "blocks"))],
)

# %% [markdown]
# ## Fault 4: ReLU where the paper has GELU
#
# It trains, and it has as many parameters. What is lost: half of the numbers in the middle of the MLP are exactly zero,
# and so is their gradient. The activation is a part as well.


# %%
def share_of_zeros(activation) -> float:
    """Share of zeros in the middle of the first MLP."""
    torch.manual_seed(0)
    network = ViT(small_form(), Parts(activation=lambda config: activation()))
    with torch.no_grad():
        block = network.blocks[0]
        middle = block.mlp.act(block.mlp.fc1(block.norm2(network.embed(torch.randn(4, 1, 28, 28)))))
    return float((middle == 0).float().mean())


x = torch.linspace(-5, 5, 100_001)
show("relu", share_of_zeros(nn.ReLU), "share of zeros in the middle of the MLP, ReLU")
show("relu.right", share_of_zeros(nn.GELU), "the same, GELU")
show("relu.apart", largest(F.gelu(x) - x.relu()), "the two functions differ by at most")

# %% [markdown]
# ## Fault 5: a second linear map after the convolution
#
# Two linear maps with nothing between are one linear map: A (B x + b) + a = (A B) x + (A b + a). The second map adds
# 590,592 numbers to learn and nothing that the first could not say. Proof: melt both into one convolution.


# %%
def melted(twice: TwiceMapped) -> PatchEmbedding:
    """One patch map that answers what the two answer."""
    first, second = twice.patches.proj, twice.linear
    once = PatchEmbedding(3, 768, (16, 16))
    with torch.no_grad():
        once.proj.weight.copy_((second.weight @ first.weight.flatten(1)).view_as(first.weight))
        once.proj.bias.copy_(second.weight @ first.bias + second.bias)
    return once


with torch.no_grad():
    apart = largest(melted(as_written.embed)(two_pictures) - as_written.embed(two_pictures))
show("second_map", apart, "difference of two maps and the one that replaces both")
show("second_map.parameters", parameters(as_written.embed), "numbers of the two maps")
show("second_map.parameters.right", parameters(base.patch_embed), "numbers of the one")

# %% [markdown]
# ## Fault 6: four heads here, twelve there
#
# The document's block has a default of 4 heads, its model of 12. Who builds a block without saying how many gets
# another network *with the same number of parameters*: heads only cut the width. vitrail's attention has no default.


# %%
def with_heads(heads: int) -> Attention:
    torch.manual_seed(0)
    return Attention(768, heads)


torch.manual_seed(1)
tokens = torch.randn(2, 50, 768)
try:
    Attention(768)
    told = False
except ValueError:
    told = True
show("heads.parameters", parameters(with_heads(12)) - parameters(with_heads(4)), "parameters, 12 heads minus 4 heads")
show("heads", largest((with_heads(12)(tokens) - with_heads(4)(tokens)).detach()), "answers differ by, same weights")
show("heads.right", told, "vitrail's attention wants to be told")

# %% [markdown]
# ## Fault 7: probabilities where a loss wants logits
#
# The model ends in a softmax. Cross-entropy makes another one: for 1000 classes the loss of a perfect answer is
# log(1 + 999 / e), hardly below the log(1000) = 6.908 of pure guessing. (D0 does the same with ten classes.)


# %%
def loss_of_a_perfect_answer(softmax_first: bool) -> float:
    logits = torch.zeros(1, 1000)
    logits[0, 0] = 100.0
    return F.cross_entropy(logits.softmax(-1) if softmax_first else logits, torch.tensor([0])).item()


show("probabilities", loss_of_a_perfect_answer(True), "loss of a perfect answer, probabilities")
show("probabilities.right", loss_of_a_perfect_answer(False), "loss of a perfect answer, logits")
print(f"closed form {math.log(1 + 999 / math.e):.4f}")

# %% [markdown]
# ## Fault 8: arguments that nobody reads
#
# `image_size` can be given and is not used, and 768 stands where `width` should: another width builds, and
# fails at the first picture with a shape error from deep inside.


# %%
def error_of(network: nn.Module, images: Tensor) -> str:
    try:
        network(images)
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"
    return "no error"


wide = coloured_noise(1)
narrow = ViTConfig(width=384, depth=1, heads=6)
show("hard_coded", error_of(AsWritten(width=384, depth=1), wide), "document, width 384")
show("hard_coded.right", error_of(ViT(narrow), wide), "vitrail, width 384")
sizes = [parameters(AsWritten(image_size=size, depth=1)) for size in (32, 224)]
show("image_size", sizes[1] - sizes[0], "parameters for 224 pixels minus those for 32, document")
sizes = [parameters(ViT(ViTConfig(image_size=size, depth=1))) for size in (32, 224)]
show("image_size.right", sizes[1] - sizes[0], "the same, vitrail: 192 positions of 768")

# %% [markdown]
# ## Take away
#
# - Before you train a network, show it black pictures. If the answer stays the same, it is blind.
# - Ask for the gradient at the pixels. Exactly 0.0 means that there is no way from the picture to the answer.
# - Call it twice. A network in eval mode is a function: the same picture, the same bits.
# - Change one picture of a batch: no other answer may move.
# - What is to be learnt is made in the constructor. Count parameters term by term, not only in sum: here one term
#   too many hid two that were missing.
# - Silence all branches of a residual network: what comes in must come out.
