# %% [markdown]
# # What is a Vision Transformer?
#
# Ten minutes, from the beginning. You need to know what a picture is. A little Python helps, but you can read the text
# and look at the pictures alone. You need no other document.
#
# A Vision Transformer (a *ViT*) is a program that looks at a picture and answers a question about it. Here the
# question is: which digit is this? The answer is ten numbers, one for each digit from 0 to 9, that say how sure the
# program is. Nobody writes down what a 7 looks like. The program starts with random numbers inside, sees many digits
# together with the right answers, and changes its numbers a little after each mistake, until it answers well. That is
# all that *learning* means here.
#
# We build one, train it for a few seconds, look inside, and then ask the most important question: how far can we trust
# what we see there?

# %%
import torch
import torch.nn.functional as F

from draw import apart, bars, curves, drawing, heat, in_a_row, outlined, panels
from lesson import parameters, pictures, results, show
from parts import Patchify
from vitrail.explain import occlusion, raw_attention, trust
from vitrail.nn import Record, ViT, ViTConfig

RESULTS = results()
images, labels, source = pictures("train", 12_000)
test_images, test_labels, _ = pictures("test", 1000)
show("data", source, "the digits come from")
DIGITS = [str(digit) for digit in range(10)]

# %% [markdown]
# ## 1. A picture is cut into patches
#
# To a computer a picture is a table of numbers. Ours have 28 rows and 28 columns, and each number says how bright one
# point (one *pixel*) is. That is 784 numbers, too many to compare each with each. So a ViT cuts the picture into
# squares, as one cuts a cake. Each square is a **patch**. Here a patch has 7 x 7 pixels, and the picture has 16
# patches.
#
# The patches are laid in a row, left to right and then down, like the words of a page. This is the whole trick: a
# *Transformer* is a program for reading rows of words, and a picture has become a row of 16 "words".

# %%
PATCH, GRID = 7, (4, 4)
digit = test_images[0]
panels(
    "A handwritten digit, its sixteen patches, and the row of patches that the network reads",
    [("a picture of 28 x 28 pixels", drawing(digit)), ("its 16 patches, numbered", apart(digit, PATCH))],
    [("what the network reads: 16 patches in a row", in_a_row(digit, PATCH))],
)

# %% [markdown]
# ## 2. A patch becomes a token
#
# The 49 brightness values of a patch are not what the network works with. It multiplies them with numbers that it
# learns, and gets 48 new numbers for each patch. This list of 48 numbers is called a **token**. Think of it as a note
# on a card: it says what is in the patch, in a language that the network invents for itself.
#
# Two things are added:
#
# - Each token gets its **position**: 48 more numbers that say "I am patch 5". Without them the network could not tell
#   where a patch was.
# - One empty card stands in front of the row, the **class token**. It belongs to no patch. At the end the answer is
#   read from this card, and until then it collects what the others know.

# %%
CONFIG = ViTConfig(image_size=28, patch_size=PATCH, channels=1, classes=10, width=48, depth=2, heads=4, mlp_dim=96)
torch.manual_seed(0)
network = ViT(CONFIG)
torch.nn.init.normal_(network.pos_embed, std=0.5)  # larger than usual, so that a few seconds of training are enough
show("parameters", parameters(network), "numbers that this network can learn")
show("tokens", list(network.embed(images[:1]).shape[1:]), "tokens of a picture, and numbers in each token")

# %% [markdown]
# Do positions matter? Mix the 16 patches like cards. You would no longer read the digit. A network without positions
# would not even notice: it would see the same 16 patches. Below, the same network answers both pictures, once without
# its positions (they are set to zero) and once with them.

# %%
patchify = Patchify(PATCH)
mixed = patchify.inverse(patchify(digit[None])[:, torch.randperm(16)], (28, 28))[0]


@torch.no_grad()
def notices(with_positions: bool) -> float:
    """How far the answer to the mixed picture is from the answer to the right one."""
    other = ViT(CONFIG).eval()
    torch.manual_seed(1)
    torch.nn.init.normal_(other.head.weight)  # a fresh head answers zero to everything
    torch.nn.init.normal_(other.pos_embed) if with_positions else torch.nn.init.zeros_(other.pos_embed)
    return float((other(digit[None]) - other(mixed[None])).abs().max())


show("positions.without", round(notices(False), 4), "difference of the two answers without positions")
show("positions.with", round(notices(True), 4), "with positions")
panels(
    "The digit, and the same sixteen patches in another order",
    [("in order", apart(digit, PATCH, numbers=False)), ("mixed", apart(mixed, PATCH, numbers=False))],
)

# %% [markdown]
# ## 3. Tokens look at each other: attention
#
# A single patch of a digit says little: a short line may belong to a 1, a 4 or a 7. Patches have to be compared. In
# **attention** each token looks at all tokens, decides how much each of them matters to it, and takes over a mixture
# of what they say. The decisions are shares: for each token they sum to 100 %. A ViT does this several times at once,
# and each of these is a **head**. One head may look for what is next to me, another for where the line goes on.
#
# After attention each token is worked on alone (by the *MLP*, a small network that is the same for all tokens).
# Attention and MLP together are a **block**. This network has two blocks with four heads each. Large ones have 12
# blocks or more.
#
# ## 4. It learns
#
# Now it sees 64 digits at a time, 200 times. After each time every number inside is moved a little in the direction
# that makes the right answer more probable. The curve shows how surprised the network is by the right answers (its
# *loss*): 2.3 is pure guessing among ten digits, and 0 would be sure and right.


# %%
@torch.no_grad()
def percent_right() -> float:
    return 100 * float((network.eval()(test_images).argmax(1) == test_labels).float().mean())


show("before", percent_right(), "percent of the test digits named rightly before")
optimizer = torch.optim.AdamW(network.train().parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=200, pct_start=0.15)
losses = []
torch.manual_seed(0)
for _ in range(200):
    chosen = torch.randint(len(images), (64,))
    loss = F.cross_entropy(network(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
show("after", percent_right(), "percent named rightly after 200 steps")
smooth = torch.tensor(losses).unfold(0, 10, 10).mean(1).tolist()
panels(
    "The loss falls from 2.3, where the network guesses, during 200 steps of training",
    [("loss, mean of ten steps", curves({"loss": smooth}, list(range(10, 201, 10)), "steps of training"))],
)

# %% [markdown]
# The test digits were never shown in training. So the network has not learnt them by heart.
#
# ## 5. What it answers, and where it looked
#
# The answer to one digit as ten bars. Beside it, attention of one head in the last block: how much the class token
# (the card that the answer is read from) takes from each patch. Light means much.

# %%
one = digit[None]
record = Record("blocks.1.attention")
with torch.no_grad():
    probabilities = network(one, record=record)[0].softmax(-1)
named = int(probabilities.argmax())
row = record["blocks.1.attention"][0, 0, 0]  # of the first picture: head 0, the row of the class token
show("sure", round(float(probabilities[named]), 3), f"how sure it is that this is a {named}, from 0 to 1")
show("sum", round(float(row.sum()), 4), "the shares of one token sum to")
panels(
    "A digit, the ten probabilities, and how much the class token takes from each patch in one head",
    [
        ("the picture", drawing(digit)),
        ("the answer", bars(probabilities.tolist(), DIGITS, marked=named)),
        ("attention of one head", heat(row[1:].reshape(GRID))),
    ],
)

# %% [markdown]
# On MNIST's digits this head reads most where there is no ink. That is common. Attention says where a head *reads*, not
# what the answer *rests on*: there are eight heads here, in two blocks, and the MLPs between them change what is passed
# on. For the second question there are methods of explanation. Each makes a **map**: one number for each patch that
# says how much the answer rests on it.
#
# ## 6. Is the map true?
#
# A map always looks convincing. So never believe a map because it looks right. Test it: if the answer rests on the
# patches that the map names, then the network must become unsure when these are replaced.
#
# Here are two maps of the same answer. The first is made of attention (the mean over all heads of the last block). The
# second, *occlusion*, covers each patch in turn and notes how much the answer falls (red) or rises (blue). Below each
# map, its four highest patches are replaced by patches of other digits.

# %%
maps = {"attention": raw_attention(network, one), "occlusion": occlusion(network, one)}
others = patchify(test_images[200:300])  # 100 digits that lend their patches


@torch.no_grad()
def replaced(places: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The digit with these patches from each of the others, and how sure the network is on average."""
    patches = patchify(one).repeat(len(others), 1, 1)
    patches[:, places] = others[:, places]
    changed = patchify.inverse(patches, (28, 28))
    return changed, float(network(changed).softmax(-1)[:, named].mean())


draws = [replaced(torch.randperm(16, generator=torch.Generator().manual_seed(seed))[:4])[1] for seed in range(20)]
show("replaced.chance", round(sum(draws) / 20, 3), "how sure when four patches are replaced by chance, 20 draws")
above, below = [("the picture", drawing(digit))], []
for method, attribution in maps.items():
    highest = attribution.values[0].flatten().argsort(descending=True)[:4]
    changed, sure = replaced(highest)
    show(f"replaced.{method}", round(sure, 3), f"how sure when the four highest of {method} are replaced")
    overlay = attribution.overlay((255 * digit[0]).byte().numpy())
    above.append((f"map by {method}", overlay.resize((168, 168))))
    below.append((f"four replaced: {100 * sure:.0f} %", outlined(drawing(changed[0]), highest.tolist(), GRID)))
panels(
    "Two maps of one answer, and below each the digit with the map's four highest patches replaced",
    above,
    [(f"nothing replaced: {100 * float(probabilities[named]):.0f} %", drawing(digit)), *below],
)

# %% [markdown]
# On MNIST: replacing the four patches on top of the attention map does no more harm than replacing any four. Replacing
# those of occlusion takes the answer away. The first map is pretty, the second is true.
#
# vitrail makes this test for every map, with more care: it replaces more and more patches, in five ways, and compares
# with 24 random maps that are as smooth as the tested one. And it asks first whether there is anything to explain at
# all: images put together from shuffled pieces of many pictures must not get the same answer as surely. The result is
# one phrase, the **verdict**. Of the two maps above, and then of the maps of the first twenty test digits:

# %%
background = test_images[300:360]
twenty = test_images[:20]
torch.manual_seed(0)
ignorant = ViT(CONFIG).eval()
torch.nn.init.normal_(ignorant.head.weight)
for says, asked, explain in (
    ("attention", network, raw_attention),
    ("occlusion", network, occlusion),
    ("untrained", ignorant, occlusion),
):
    verdicts = trust(asked, twenty, explain(asked, twenty), background=background).verdict
    show(f"verdict.{says}", verdicts[0], f"the verdict on the first map, {says}")
    show(f"supported.{says}", verdicts.count("supported"), f"of 20 maps are supported, {says}")

# %% [markdown]
# Both maps look like explanations, and only the test tells them apart. It is strict: a network that has learnt for
# three seconds is often just as sure of shuffled pieces, and then the verdict is *cannot tell*. Of a network that has
# learnt nothing (*untrained*), no map is supported.
#
# One thing a verdict does not say: that the *answer* is right. A network can be wrong, and a true map then shows what
# it was wrong about.
#
# ## Ten words to take along
#
# | word | means |
# |---|---|
# | pixel | one point of a picture, a number |
# | patch | a square piece of the picture |
# | token | the list of numbers that stands for a patch inside the network |
# | position | numbers added to a token that say where its patch was |
# | class token | an extra token in front, from which the answer is read |
# | attention | each token takes a mixture of all tokens, in shares that sum to 1 |
# | head | one of several attentions that run side by side |
# | block | attention and then an MLP; a ViT is a pile of blocks |
# | map (attribution) | a number for each patch: how much the answer rests on it |
# | verdict | whether a test supports the map: supported, weak, no better than random, cannot tell |
#
# The next lesson, [D0](d0_vit_on_mnist.md), builds such a network with care and shows eight ways to get it wrong. The
# same from the command line: `vitrail train digits --out runs/digits`, then `vitrail explain runs/digits digits
# --count 4`.
