"""Promises of the views inside: sums that close, and the plain run's numbers at every depth."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.inside.attention_distance import attention_distance
from vitrail.explain.inside.direct_attribution import direct_attribution
from vitrail.explain.inside.head_ablation import head_ablation
from vitrail.explain.inside.head_sources import head_sources
from vitrail.explain.inside.logit_lens import logit_lens, patch_lens
from vitrail.explain.inside.patch_filters import patch_filters
from vitrail.explain.inside.position_similarity import position_similarity
from vitrail.explain.inside.reading import encoder_block
from vitrail.explain.inside.sinks import find_sinks, without_sinks
from vitrail.explain.methods.raw_attention import raw_attention
from vitrail.explain.selftest.all_methods import without_positions
from vitrail.explain.selftest.plain import read_out, through
from vitrail.explain.selftest.witness import Promise, Witness, off


def lens_reads_every_depth(witness: Witness) -> float:
    """What norm, pooling and head say of the tokens at every depth, and of every patch on its own."""
    network, run = witness.network, witness.run
    depths = [run.tokens, *(step.output for step in run.steps)]
    wanted = torch.stack([read_out(network, tokens).detach() for tokens in depths])
    after = run.steps[-1].output[:, witness.places].detach()
    each = network.head(network.norm(after)).unflatten(1, witness.grid)
    return max(
        off(logit_lens(network, witness.images), wanted),
        off(patch_lens(network, witness.images), each),
    )


def parts_are_the_logit(witness: Witness) -> float:
    """Embedding, heads, MLPs and constants add up; every MLP has its own part."""
    found = direct_attribution(witness.network, witness.images, witness.target)
    parts = torch.cat([found.heads.flatten(0, 1), found.attention_bias, found.mlp, found.embedding[None]])
    size = (parts.abs().sum(dim=0) + found.constant.abs()).max()
    total = parts.sum(dim=0) + found.constant
    tokens = witness.run.steps[-1].output.detach().requires_grad_()
    read = read_out(witness.network, tokens, held=True)
    (slope,) = torch.autograd.grad(witness.of(read).sum(), tokens)
    mlps = torch.stack([(step.mlp.detach() * slope).sum(dim=(1, 2)) for step in witness.run.steps])
    written = torch.stack([(step.written.detach() * slope).sum(dim=(1, 2)) for step in witness.run.steps])
    logit = witness.of(witness.run.logits).detach()
    return max(off(total, logit, size), off(found.mlp, mlps, size), off(found.attention, written, size))


def sources_are_what_attention_adds(witness: Witness) -> float:
    """The vectors from all tokens, by all heads, add up to what attention writes to one token."""
    row, column = 2, 1
    token, worst = witness.places[row * witness.grid[1] + column], 0.0
    for layer in (0, -1):
        found = head_sources(witness.network, witness.images, layer, (row, column))
        written = witness.run.steps[layer].written.detach()[:, token]
        size = found.vectors.abs().sum(dim=(1, 2)).max() + found.bias.abs().max()
        total = found.vectors.sum(dim=(1, 2)) + found.bias
        worst = max(worst, off(total, written, size), off(found.output, written, size))
    return worst


def ablation_gives_the_mean(witness: Witness) -> float:
    """One head of the first block gives its mean over the other pictures; the plain run goes on from there."""
    network, image, others = witness.network, witness.images[:1], witness.images[1:]
    attended = witness.run.steps[0].attended.detach()
    head = network.config.heads - 1

    def swapped(numbers: Tensor) -> Tensor:
        return torch.cat([numbers[:, :head], attended[1:, head:].mean(dim=0, keepdim=True)], dim=1)

    with torch.no_grad():
        tokens = network.embed(image)
        for index in range(network.config.depth):
            block = encoder_block(network, index)
            tokens = (through(block, tokens) if index else through(block, tokens, swap=swapped)).output
        without = read_out(network, tokens)[0, witness.target[0]]
    logit = witness.run.logits[0, witness.target[0]].detach()
    found = head_ablation(network, image, witness.target[:1], references=others, layers=[0], heads=[head])
    return off(found.change[0, 0], (without - logit)[None], torch.stack([without, logit]))


def distances_are_measured(witness: Witness) -> float:
    """Attention among patches times the way from centre to centre, by Pythagoras."""
    rows, columns = witness.grid
    height, width = witness.network.config.patch
    at = torch.tensor([[r * height, c * width] for r in range(rows) for c in range(columns)], dtype=torch.float64)
    way = (at[:, None] - at).square().sum(dim=2).sqrt()
    among = torch.stack([weights[:, :, witness.places][:, :, :, witness.places] for weights in witness.attention])
    among = among / among.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(among.dtype).tiny)
    wanted = (among * way).sum(dim=-1).mean(dim=-1).transpose(1, 2)
    found = attention_distance(witness.network, witness.images)
    return max(off(found.pixels, wanted), abs(found.uniform - float(way.mean())) / float(way.max()))


def positions_are_compared(witness: Witness) -> float:
    """The cosine of what two patches' tokens get that a network without positions does not give them."""
    if witness.network.pos_embed is None:
        return 0.0
    blind = without_positions(witness.network)
    with torch.no_grad():
        added = (witness.network.embed(witness.images[:1]) - blind.embed(witness.images[:1]))[0, witness.places]
    wanted = F.cosine_similarity(added[:, None], added, dim=2)
    return off(position_similarity(witness.network, witness.grid).flatten(0, 1).flatten(1), wanted)


def filters_are_principal(witness: Witness) -> float:
    """Each filter, shown as a picture, brings the share of variance that it claims; filters stand at right angles."""
    network, (height, width) = witness.network, witness.network.config.patch
    channels = network.config.channels
    try:
        found = patch_filters(network, channels * height * width)
    except UsageError:
        return 0.0  # a patch map that does not tell the order of its numbers
    unit = torch.eye(channels * height * width, dtype=torch.float64).unflatten(1, (channels, height, width))
    with torch.no_grad():
        seen, basis = (network.patch_embed(each) - network.patch_embed(0 * each) for each in (found.filters, unit))
    variance = [(each - each.mean(dim=-1, keepdim=True)).square().sum() for each in (*seen, basis)]
    shares = torch.stack(variance[:-1]) / variance[-1].clamp(min=torch.finfo(torch.float64).tiny)
    angles = found.filters.flatten(1) @ found.filters.flatten(1).T
    right = torch.eye(len(angles)).to(angles)
    return max(off(found.explained, shares, torch.ones(1)), off(angles, right))


def sinks_stand_out(witness: Witness) -> float:
    """Length of every patch's token, and the cut-off from sorted lengths; without sinks a map is zero there."""
    found = find_sinks(witness.network, witness.images)
    lengths = torch.stack([witness.map(step.output.detach().square().sum(dim=2).sqrt()) for step in witness.run.steps])
    flat = lengths.flatten(2)
    middle = _middle(flat)
    spread = _middle((flat - middle[..., None]).abs())
    cut_off = torch.maximum(middle + 6 * spread, 2 * middle)
    heat = raw_attention(witness.network, witness.images)
    planted = torch.zeros_like(found.found)
    planted[:, :, 1, 2] = True
    left = without_sinks(type(found)(found.norms, found.cut_off, planted), heat).values
    wanted = heat.values.clone()
    wanted[:, 1, 2] = 0
    return max(off(found.norms, lengths), off(found.cut_off, cut_off), off(left, wanted))


def _middle(numbers: Tensor) -> Tensor:
    ordered = numbers.sort(dim=-1).values
    return ordered[..., (ordered.shape[-1] - 1) // 2]


PROMISES = (
    Promise("the logit lens at every depth", lens_reads_every_depth),
    Promise("direct attribution adds up to the logit", parts_are_the_logit),
    Promise("heads and sources add up to attention", sources_are_what_attention_adds),
    Promise("a head without its say, by hand", ablation_gives_the_mean),
    Promise("attention distance by Pythagoras", distances_are_measured),
    Promise("likeness of positions by hand", positions_are_compared),
    Promise("patch filters explain what they claim", filters_are_principal),
    Promise("sinks by sorted lengths", sinks_stand_out),
)
