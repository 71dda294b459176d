# %% [markdown]
# # D0 · A very small Vision Transformer for handwritten digits
#
# What you need: a little Python and torch, and what a patch, a token and attention are
# ([ten minutes](what_is_a_vit.md)). Nothing else has to be at hand.
#
# This lesson builds the smallest Vision Transformer that still has every organ, for digits of 28 x 28 pixels. Then it
# makes eight mistakes on purpose. All eight are from a real tutorial, called *the document* here. None of them stops
# the program, so nobody notices; each is put back by hand, and gets a number.
#
# | step | shape | numbers that are learnt |
# |---|---|---|
# | pictures | (b, 1, 28, 28) | |
# | cut into 7 x 7 patches of 4 x 4 pixels | (b, 49, 16) | |
# | a linear map of each patch | (b, 49, 8) | 136 |
# | the class token in front | (b, 50, 8) | 8 |
# | fixed positions added | (b, 50, 8) | |
# | 2 blocks: norm, attention of 2 heads, norm, MLP 8 -> 32 -> 8, each added to what came in | (b, 50, 8) | 2 x 704 |
# | a linear map of the class token | (b, 10) | 90 |
#
# That is 1,642 numbers in the document's form. In words, what a picture goes through:
#
#     +--+--+--+--+--+--+--+
#     |  |  |  |  |  |  |  |        49 patches, left to right and then down
#     +--+--+--+--+--+--+--+   ->   [class] [patch 1] [patch 2] ... [patch 49]     each 8 numbers
#     |  |  |  |  |  |  |  |           |        ^ two blocks let every token ask every other ^
#     +--+--+--+--+--+--+--+           v
#                                   ten numbers, one for each digit
#
# It trains with Adam (rate 0.005, batches of 128) and cross-entropy.

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draw import apart, bars, curves, drawing, heat, panels
from lesson import largest, parameters, pictures, results, seconds, show
from parts import Patchify
from vitrail.data.batches import Batch
from vitrail.errors import UsageError
from vitrail.nn import SILENT, Attention, Parts, Record, ViT, ViTConfig, sinusoids
from vitrail.tasks import Classes
from vitrail.tasks.classify import ClassMetrics

RESULTS = results()
images, labels, source = pictures("train", 16_000)
show("data", source, "the pictures come from")

# %% [markdown]
# The first digit, and what the network makes of it: 49 patches of 4 x 4 pixels, numbered as they stand in the sequence.
# Most are black. To each the network adds its column of a fixed table, its *position*: eight numbers between -1 and 1
# that no other place has. The first column is the class token's, the last that of the patch at the lower right. The
# upper rows change from place to place, the lower ones slowly, like the digits of a counter.

# %%
panels(
    "A digit, its 49 patches in reading order, and the table of positions, one column for each token",
    [("28 x 28 pixels", drawing(images[0], 224)), ("49 patches of 4 x 4", apart(images[0], 4, side=224))],
    [("positions: 8 numbers (rows) of 50 tokens (columns)", heat(sinusoids(50, 8).T, signed=True, side=500))],
)

# %% [markdown]
# ## The right form
#
# One configuration says everything. `ViT(config)(images)` gives logits: ten numbers that may be anything.

# %%
CONFIG = ViTConfig(
    image_size=28, patch_size=4, channels=1, classes=10, width=8, depth=2, heads=2, positions="sinusoidal"
)


def right_form() -> ViT:
    torch.manual_seed(0)
    return ViT(CONFIG)


show("parameters.right", parameters(right_form()), "numbers learnt by the right form")
tokens = right_form().embed(images[:2])
print("after the embedding", tuple(tokens.shape), "and after the network", tuple(right_form()(images[:2]).shape))

# %% [markdown]
# ## Fault 1: heads that see only a slice, and never meet
#
# Attention with several heads maps the *whole* token to queries, keys and values of each head, and a last map lets the
# heads' answers mix. In the document each head gets its own slice of the token, and nothing follows: written as one
# matrix, the map is block-diagonal. Nothing warns, because the shapes are the same: the MLP after it must do all the
# mixing.
#
# The faulty part is a module of a few lines. It goes into vitrail's network from outside, through `Parts`.


# %%
class SlicedHeads(nn.Module):
    """Attention in which head i sees only numbers i * e to (i + 1) * e of a token, without an output map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        maps = [nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads)) for _ in range(3)]
        self.queries, self.keys, self.values = maps

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        slices = tokens.chunk(self.heads, dim=-1)
        q, k, v = (
            torch.stack([one(part) for one, part in zip(maps, slices, strict=True)], dim=1)
            for maps in (self.queries, self.keys, self.values)
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        record.keep_attention(q, k, v, attended, None)
        return attended.transpose(1, 2).flatten(2)


def reach_of_a_slice(attention: nn.Module) -> float:
    """How much the first head's half of the answer changes when only the second half of the tokens does."""
    torch.manual_seed(0)
    tokens, noise = torch.randn(2, 50, 8), torch.randn(2, 50, 4)
    changed = torch.cat([tokens[..., :4], tokens[..., 4:] + noise], dim=-1)
    return largest((attention(changed) - attention(tokens))[..., :4])


def numbers_of_the_maps(attention: nn.Module) -> int:
    return sum(p.numel() for name, p in attention.named_parameters() if "weight" in name)


torch.manual_seed(0)
show("sliced_heads", reach_of_a_slice(SlicedHeads(8, 2)), "change in half 1 when half 2 changes, sliced heads")
show("sliced_heads.right", reach_of_a_slice(Attention(8, 2)), "the same in whole heads with an output map")
show("sliced_heads.weights", numbers_of_the_maps(SlicedHeads(8, 2)), "weights of its maps (3 maps, half of each zero)")
show("sliced_heads.weights.right", numbers_of_the_maps(Attention(8, 2)), "weights of whole maps (4 maps of 8 x 8)")

# %% [markdown]
# The same as a picture. Each square says how much one number of the token (column) counts for one number of the
# queries (row). In the sliced heads two corners are empty, whatever is learnt: no number of one half ever meets the
# other half.


# %%
def reaches(attention: nn.Module) -> Tensor:
    """The map to the queries as one matrix (8, 8), absolute."""
    if isinstance(attention, SlicedHeads):
        return torch.block_diag(*(one.weight for one in attention.queries)).abs()
    return attention.qkv.weight[:8].abs()


torch.manual_seed(0)
panels(
    "The weights of the map to the queries: sliced heads leave two corners empty, whole heads none",
    [("sliced heads", heat(reaches(SlicedHeads(8, 2)))), ("whole heads", heat(reaches(Attention(8, 2))))],
)

# %% [markdown]
# ## Fault 2: a softmax in the model, and one more in the loss
#
# Cross-entropy takes logits and makes a softmax of them. If the model has made one already, the loss sees numbers from
# 0 to 1. Even a perfect answer, 1 for the right digit and 0 for the others, then becomes e / (e + 9): the loss
# cannot fall below log(1 + 9 / e) = 1.461. And where the model is *sure and wrong*, the inner softmax is flat: no
# gradient comes back, just where it is needed most. The model trains all the same, only worse.


# %%
def loss_of(logit: float, softmax_first: bool) -> tuple[float, float]:
    """Loss and largest gradient when digit 0 gets `logit`, the others 0, and the truth is 0 (or 1 if negative)."""
    logits = torch.zeros(1, 10)
    logits[0, 0] = abs(logit)
    logits.requires_grad_()
    truth = torch.tensor([0 if logit > 0 else 1])
    loss = F.cross_entropy(logits.softmax(-1) if softmax_first else logits, truth)
    loss.backward()
    return loss.item(), largest(logits.grad)


show("double_softmax", loss_of(50.0, True)[0], "loss of a perfect answer, softmax in the model")
show("double_softmax.right", loss_of(50.0, False)[0], "loss of a perfect answer, logits")
show("double_softmax.gradient", loss_of(-50.0, True)[1], "gradient when sure and wrong, softmax in the model")
show("double_softmax.gradient.right", loss_of(-50.0, False)[1], "gradient when sure and wrong, logits")
print(f"closed form of the floor: {math.log(1 + 9 / math.e):.4f}")

# %% [markdown]
# Both losses, from sure and wrong (left) to sure and right (right). With two softmaxes the curve is flat at both ends:
# at the right it does not come down to zero, and at the left nothing says in which direction to go.

# %%
logits = [step / 2 for step in range(-20, 21) if step]
panels(
    "The loss over the logit of the right digit: with two softmaxes it is flat at both ends, and never below 1.46",
    [
        (
            "loss",
            curves(
                {
                    "softmax twice": [loss_of(each, True)[0] for each in logits],
                    "logits": [loss_of(each, False)[0] for each in logits],
                },
                logits,
                "logit: sure and wrong ... sure and right",
            ),
        )
    ],
)

# %% [markdown]
# ## Fault 3: no norm after the last block
#
# Each block adds to the tokens and nothing takes the size back. The paper normalises once more before the head
# (equation 4), so that the head reads a direction and not a size. Here the tokens after the last block are made ten
# times as large: the head without a norm answers ten times as much.
#
# This is not a part but an assembly: the network is built and its last norm taken out.


# %%
def as_the_document_builds_it() -> ViT:
    """D0's network: sliced heads and probabilities come in as parts; the last norm is taken out."""
    torch.manual_seed(0)
    parts = Parts(
        attention=lambda config: SlicedHeads(config.width, config.heads),
        head=lambda config: nn.Sequential(nn.Linear(config.width, config.classes), nn.Softmax(dim=-1)),
    )
    network = ViT(CONFIG, parts)
    network.norm = nn.Identity()
    return network


def growth(network: ViT) -> float:
    """How many times larger the logits are when the tokens after the last block are ten times as large."""
    torch.manual_seed(0)
    linear = network.head[0] if isinstance(network.head, nn.Sequential) else network.head
    nn.init.normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    tokens = torch.randn(4, 50, 8)
    small, large = (linear(network.norm(scale * tokens)[:, 0]).detach() for scale in (1, 10))
    return float(large.norm() / small.norm())


show("parameters", parameters(as_the_document_builds_it()), "numbers learnt by the document's form")
show("no_last_norm", growth(as_the_document_builds_it()), "growth of the logits without a last norm")
show("no_last_norm.right", growth(right_form()), "growth of the logits with it")

# %% [markdown]
# The difference of the two counts is 352: whole heads with an output map cost 168 more in each of two blocks, the last
# norm 16.
#
# ## Fault 4: loops in Python
#
# The document cuts patches by three loops (pictures, rows, columns) and computes attention by two (pictures, heads).
# It is the same mathematics: the answers are equal. But a training step of 128 pictures cuts 6,272 patches one by
# one, and the processor waits for Python.


# %%
def cut_by_loops(pictures: Tensor, grid: int = 7) -> Tensor:
    """Patches as the document cuts them: by size divided by 7, into a fresh table of zeros."""
    n, c, h, w = pictures.shape
    patches = torch.zeros(n, grid * grid, h * w * c // grid**2)
    side = h // grid
    for index, picture in enumerate(pictures):
        for row in range(grid):
            for column in range(grid):
                square = picture[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
                patches[index, row * grid + column] = square.flatten()
    return patches


class LoopedPatches(nn.Module):
    """The patch map behind the loops."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(16, width)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.proj(cut_by_loops(pictures))


class LoopedHeads(SlicedHeads):
    """Sliced heads, one picture and one head at a time."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        answers = []
        for sequence in tokens:
            heads = []
            for head, part in enumerate(sequence.chunk(self.heads, dim=-1)):
                q, k, v = self.queries[head](part), self.keys[head](part), self.values[head](part)
                heads.append((q @ k.T / self.head_dim**0.5).softmax(-1) @ v)
            answers.append(torch.cat(heads, dim=-1))
        return torch.stack(answers)


def looped_form() -> ViT:
    """The document's network with its loops, and the numbers of the one without."""
    torch.manual_seed(0)
    parts = Parts(
        embedding=lambda config: LoopedPatches(config.width),
        attention=lambda config: LoopedHeads(config.width, config.heads),
        head=lambda config: nn.Sequential(nn.Linear(config.width, config.classes), nn.Softmax(dim=-1)),
    )
    network = ViT(CONFIG, parts)
    network.norm = nn.Identity()
    state = as_the_document_builds_it().state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    network.load_state_dict(state)
    return network


def step_seconds(network: ViT) -> float:
    """Seconds of one training step of 128 pictures."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images[:128]), labels[:128]).backward()
        optimizer.step()

    return seconds(step)


with torch.no_grad():
    apart = largest(looped_form()(images[:16]) - as_the_document_builds_it()(images[:16]))
show("loops.harmless", apart, "difference of the answers, loops against whole tensors")
loops, whole = step_seconds(looped_form()), step_seconds(right_form())
show("loops.per_second", 128 / loops, "pictures a second in training, loops")
show("loops.per_second.right", 128 / whole, "pictures a second in training, whole tensors")
show("loops.times", loops / whole, "times as fast without the loops")

# %% [markdown]
# The table of positions is filled by two loops as well. Its values are right, so this costs time only.


# %%
def table_by_loops(length: int, width: int) -> Tensor:
    table = torch.zeros(length, width)
    for token in range(length):
        for column in range(width):
            angle = token / 10_000 ** ((column - column % 2) / width)
            table[token, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


show("position_table.harmless", largest(table_by_loops(50, 8) - sinusoids(50, 8)), "difference of the two tables")
times = seconds(lambda: table_by_loops(50, 8)) / seconds(lambda: sinusoids(50, 8))
show("position_table.times", times, "times as fast as a whole tensor")

# %% [markdown]
# ## Fault 5: patches that forget where they come from
#
# `torch.zeros(...)` makes its table on the processor and in float32, wherever and whatever the pictures are. The
# document then has to carry the patches to the accelerator in every step. A map of the pictures themselves stays where
# they are. Two things show it without an accelerator: torch's `meta` device, which has shapes and no numbers, and
# pictures in double precision.


# %%
def device_and_digits(patches: nn.Module, pictures: Tensor) -> list[str]:
    """Where the patches of pictures on the `meta` device are, and their type when the pictures are float64."""
    try:
        device = patches.to("meta")(pictures.to("meta")).device.type
    except (NotImplementedError, RuntimeError):  # numbers of `meta` cannot be carried to the processor: there are none
        device = "cpu, and fails"
    return [device, str(cut_by_loops(pictures.double()).dtype).removeprefix("torch.")]


patchify = Patchify(4)  # all patches of all pictures by two views and a transposition: (b, 49, 16)
wrong, right = LoopedPatches(8), right_form().patch_embed
show("patches_on_cpu", device_and_digits(wrong, images[:2])[0], "the loops' patches of pictures on `meta` are on")
show("patches_on_cpu.right", right.to("meta")(images[:2].to("meta")).device.type, "vitrail's are on")
show("patches_on_cpu.type", device_and_digits(wrong, images[:2])[1], "the loops' patches of float64 pictures are")
show("patches_on_cpu.type.right", str(patchify(images[:2].double()).dtype)[6:], "whole tensors keep")
show("patches.harmless", largest(patchify(images[:64]) - cut_by_loops(images[:64])), "difference of the patches")

# %% [markdown]
# ## Fault 6: pictures of another size
#
# The document promises any square picture whose side the patch count divides, and a clear failure otherwise. What
# happens to pictures of other sizes in the network built above:


# %%
def outcome(network: nn.Module, height: int, width: int) -> str:
    try:
        return f"gives {tuple(network(torch.zeros(1, 1, height, width)).shape)}"
    except UsageError as error:
        return f"UsageError: try {error.hint}"
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"


SIZES = ((30, 30), (56, 56), (28, 56))
for height, width in SIZES:
    print(f"{height} x {width}")
    print("   loops  ", outcome(LoopedPatches(8), height, width))
    print("   vitrail", outcome(right_form(), height, width))


def raw_errors(network: nn.Module) -> int:
    return sum(outcome(network, *size).startswith("RuntimeError") for size in SIZES)


show("sizes", raw_errors(LoopedPatches(8)), "sizes of three that end in a raw shape error, loops")
show("sizes.right", raw_errors(right_form()), "the same, vitrail")

# %% [markdown]
# 30 x 30 is refused with the two sizes that work; 56 x 56 and 28 x 56 are cut into patches of 4 x 4 as before, and the
# positions are resized to the new grid.
#
# ## Fault 7: the mean of means
#
# The document adds up each batch's mean loss and divides by the number of batches. 10,000 test pictures are 78
# batches of 128 and one of 16: each picture of the last batch counts eight times. Suppose the network is perfect but
# for those 16 pictures:


# %%
def mean_of_means(losses: Tensor, batch: int = 128) -> float:
    return float(torch.stack([part.mean() for part in losses.split(batch)]).mean())


def counted(losses: Tensor, batch: int = 128) -> float:
    """vitrail's way: sums and counts. Two classes whose logits give each picture the loss wanted."""
    metrics, answers, start = ClassMetrics(Classes(("right", "wrong"))), [], 0
    for part in losses.split(batch):
        right = (-part).exp().clamp(1e-7, 1 - 1e-7)
        logits = torch.stack([right.log(), (1 - right).log()], dim=1)
        labels, ids = torch.zeros(len(part), dtype=torch.long), torch.arange(start, start + len(part)).numpy()
        batch = Batch(logits, labels, labels, ids, epoch=0, number=0)
        answers.append(metrics.answers(nn.Identity(), batch))  # the "network" passes the logits on
        start += len(part)
    return metrics.result(answers, str).loss


per_picture = torch.zeros(10_000)
per_picture[-16:] = 1.0
show("mean_of_means", mean_of_means(per_picture), "loss as the mean of means (1 / 79)")
show("mean_of_means.right", counted(per_picture), "loss of all pictures (16 / 10,000)")

# %% [markdown]
# ## Fault 8: code that cannot run
#
# The cell that loads the data writes `Compose[...]`, with the brackets of a list: that asks a class for an item. And
# `main()` is defined and never called, so the training does not begin. Whoever runs the page sees both at once, so it
# cannot have been run as it is printed.


# %%
def error_of(expression: str) -> str:
    from torchvision.transforms import Compose, ToTensor

    try:
        eval(expression, {"Compose": Compose, "ToTensor": ToTensor})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


show("compose", error_of("Compose[ToTensor()]"), "`Compose[ToTensor()]`")
show("compose.right", error_of("Compose([ToTensor()])"), "`Compose([ToTensor()])`")

# %% [markdown]
# ## Both, trained
#
# The same pictures in the same order, Adam at 0.005, batches of 128, two passes over 16,000 digits, one seed: the
# document's form (without its loops, to save time), the same without its softmax, and the right form. The faulty form
# learns, and that is why nobody looks; most of what it lacks is the softmax's doing.


# %%
def trained_accuracy(network: ViT, passes: int = 2) -> float:
    """Accuracy in percent on 10,000 test pictures."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    for _ in range(passes):
        for chosen in torch.randperm(len(images), generator=generator).split(128):
            optimizer.zero_grad()
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    test_images, test_labels, _ = pictures("test", 10_000)
    with torch.no_grad():
        answers = torch.cat([network(part) for part in test_images.split(500)])
    return 100 * float((answers.argmax(1) == test_labels).float().mean())


def without_softmax() -> ViT:
    network = as_the_document_builds_it()
    network.head = network.head[0]
    return network


show("trained", trained_accuracy(as_the_document_builds_it()), "percent right, the document's form")
show("trained.logits", trained_accuracy(without_softmax()), "percent right, the document's form with logits")
right = right_form()
show("trained.right", trained_accuracy(right), "percent right, the right form")

# %% [markdown]
# What the right form has learnt: one test digit, the ten probabilities, and how much the class token takes from each
# patch, in both heads of the last block. Each head reads another part of the picture. That is what several heads are
# for. It is no explanation of the answer yet; [D4](d4_explainability_first.md) makes one and tests it.

# %%
test_images, test_labels, _ = pictures("test", 10)
record = Record("blocks.1.attention")
with torch.no_grad():
    probabilities = right(test_images[:1], record=record)[0].softmax(-1)
rows = record["blocks.1.attention"][0, :, 0, 1:].unflatten(-1, (7, 7))  # of the class token, to 7 x 7 patches
panels(
    "A test digit, what the network says of it, and what the class token reads in the two heads of the last block",
    [
        (f"a {int(test_labels[0])}", drawing(test_images[0])),
        ("the answer", bars(probabilities.tolist(), [str(d) for d in range(10)], int(probabilities.argmax()))),
        ("attention, head 1", heat(rows[0])),
        ("attention, head 2", heat(rows[1])),
    ],
)

# %% [markdown]
# ## Take away
#
# - A model that trains is no proof that it is the model of the paper. Count its parameters, then count them by hand.
# - Feed one half of what a part reads with something else, and look who notices: that finds heads that do not mix.
# - A loss that stays above 1.46 for ten classes is a softmax too many. Models return logits.
# - Divide once, by the number of pictures.
# - New tensors take device and type from the tensors they go with, and loops over pictures belong into the tensor.
# - Run a page from top to bottom before you give it to others. This one runs in vitrail's tests.
