"""DINOv3 and AIMv2 as transformers has them: every token on loud weights, at two sizes; names, hubs, and refusals."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.weights.families import SMALL, TEXT, answer
from tests.weights.redraw import redrawn
from tests.weights.test_families import gap
from tests.weights.test_names import Hubs, told
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.nn import ViT
from vitrail.weights.convert import from_tensors

pytestmark = pytest.mark.usefixtures("as_a_user")
t: Any = transformers
READS = Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
LOUD = 2.5  # factor of queries and keys


@pytest.fixture
def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hubs:
    return Hubs(tmp_path, monkeypatch)


def dinov3(kind: str = "DINOv3ViTModel", **given: Any) -> Any:
    return loud(getattr(t, kind)(t.DINOv3ViTConfig(**{**SMALL, **given})))


def aimv2(**given: Any) -> Any:
    return loud(t.Aimv2VisionModel(t.Aimv2VisionConfig(**SMALL, **given)))


def loud(module: nn.Module) -> nn.Module:
    """Redrawn, with queries and keys so large that attention looks at few tokens."""
    with torch.no_grad():
        for name, parameter in redrawn(module).named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(LOUD)
    return module


def some(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed))


def tokens(network: ViT, images: Tensor) -> Tensor:
    return network.norm(network.encode(images))


def folder_of(module: nn.Module, folder: Path, **stated: Any) -> Path:
    """Its files as transformers saves them; with other tensors where `stated` has them."""
    folder.mkdir(exist_ok=True)
    module.save_pretrained(folder)  # pyrefly: ignore
    if stated:
        save_file({**load_file(folder / "model.safetensors"), **stated}, folder / "model.safetensors")
    return folder


def opened(files: Path) -> vitrail.Model:
    return vitrail.load(files, preprocessing=READS)


NETWORKS: dict[str, Callable[[], Any]] = {
    "without registers": dinov3,
    "four registers": lambda: dinov3(num_register_tokens=4),
    "another base": lambda: dinov3(num_register_tokens=4, rope_theta=1000.0),
    "gated": lambda: dinov3(num_register_tokens=4, use_gated_mlp=True, hidden_act="silu"),
    "with a bias of keys": lambda: dinov3(key_bias=True),
    "without biases": lambda: dinov3(query_bias=False, value_bias=False, proj_bias=False, mlp_bias=False),
    "trained at scales": lambda: dinov3(pos_embed_shift=0.5, pos_embed_jitter=2.0, pos_embed_rescale=3.0),
}


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_every_token_of_dinov3_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """And the pooled output is its class token behind the norm; without its rotation it is another network."""
    module = NETWORKS[name]()
    live, file = vitrail.convert(module, preprocessing=READS), opened(folder_of(module, tmp_path / "own"))
    assert live.facts["verified"] != file.facts["verified"]
    for images in (some(32, 32), some(24, 48), some(64, 16)):
        theirs = module(pixel_values=images)
        for model in (live, file):
            assert gap(tokens(model.network, images), theirs.last_hidden_state) < 1e-5
            assert gap(model.network(images), theirs.pooler_output) < 1e-5
        blind = copy.deepcopy(live.network)
        blind.rotary = None
        assert gap(blind(images), theirs.pooler_output) > 1e-2
    assert file.network.config == live.network.config
    assert file.network.config.rotary.base == module.config.rope_theta  # pyrefly: ignore


@torch.no_grad()
def test_the_backbone_of_dinov3_gives_its_maps() -> None:
    """Its maps have no class token, which is what is pooled: the last map is that of the patches."""
    module = dinov3("DINOv3ViTBackbone", num_register_tokens=4)
    network, images = vitrail.convert(module, preprocessing=READS).network, some(24, 48)
    (theirs,) = module(pixel_values=images).feature_maps
    assert gap(tokens(network, images)[:, 5:].mT.unflatten(2, (3, 6)), theirs) < 1e-5
    twin = t.DINOv3ViTModel(module.config).eval()
    twin.load_state_dict(module.state_dict())
    assert gap(network(images), twin(pixel_values=images).pooler_output) < 1e-5


@pytest.mark.parametrize("given", [{}, {"use_head": False}, {"qkv_bias": True, "mlp_bias": True}])
@torch.no_grad()
def test_every_token_of_aimv2_is_that_of_transformers(given: dict[str, Any], tmp_path: Path) -> None:
    module = aimv2(**given)
    images = some(32, 32)
    theirs = module(pixel_values=images)
    live, file = vitrail.convert(module, preprocessing=READS), opened(folder_of(module, tmp_path / "own"))
    for model in (live, file):
        assert gap(tokens(model.network, images), theirs.last_hidden_state) < 1e-5
        assert gap(model.network(images), answer(module, images)) < 1e-5
        assert "pooling" not in model.facts.get("assumed", "") or not module.config.use_head
    weights = live.network.pool.token_weights(tokens(live.network, images), 0)  # pyrefly: ignore
    assert (weights.std() > 1e-3) == module.config.use_head
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("kind", ["Siglip", "Aimv2"])
@torch.no_grad()
def test_the_part_for_images_of_a_network_for_both(kind: str, tmp_path: Path) -> None:
    """SigLIP 2 of a fixed image size bears the names of SigLIP; AIMv2 projects what it pools."""
    text = {**TEXT, "bos_token_id": 1, "pad_token_id": 0}
    config = getattr(t, f"{kind}Config")(vision_config=SMALL, text_config=text)
    module = loud(getattr(t, f"{kind}Model")(config))
    model, images = opened(folder_of(module, tmp_path / "own")), some(32, 32)
    theirs: Any = module.get_image_features(pixel_values=images)
    assert gap(model.network(images), theirs.pooler_output) < 1e-5
    inside: Any = module.vision_model
    assert (
        gap(vitrail.convert(inside, preprocessing=READS).network(images), inside(pixel_values=images).pooler_output)
        < 1e-5
    )


TWIN = {  # timm's names of a block, and transformers'
    "gamma_1": "layer_scale1.lambda1",
    "gamma_2": "layer_scale2.lambda1",
    "attn.proj.": "attention.o_proj.",
    "mlp.fc1.": "mlp.up_proj.",
    "mlp.fc2.": "mlp.down_proj.",
}


def twin_of(theirs: nn.Module, **given: Any) -> Any:
    """transformers' network with the numbers of timm's."""
    found = {"embeddings.mask_token": torch.zeros(1, 1, 48)}
    for name, tensor in theirs.state_dict().items():
        block = name.replace("blocks.", "model.layer.")
        for old, new in TWIN.items():
            block = block.replace(old, new)
        if ".attn." in block and "proj" not in block:
            front, _, last = block.partition(".attn.")
            kinds, last = {"q_bias": ("q", "bias"), "v_bias": ("v", "bias"), "qkv.weight": ("qkv", "weight")}[last]
            parts = zip(kinds, tensor.chunk(len(kinds)), strict=True)
            found |= {f"{front}.attention.{one}_proj.{last}": part for one, part in parts}
        else:
            found[block] = tensor
    for old, new in {
        "cls_token": "embeddings.cls_token",
        "reg_token": "embeddings.register_tokens",
        "patch_embed.proj.weight": "embeddings.patch_embeddings.weight",
        "patch_embed.proj.bias": "embeddings.patch_embeddings.bias",
    }.items():
        found[new] = found.pop(old)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 192}
    config = t.DINOv3ViTConfig(**sizes, image_size=64, num_register_tokens=4, layer_norm_eps=1e-5, **given)
    module = t.DINOv3ViTModel(config).eval()
    module.load_state_dict(found)
    return module


@pytest.mark.parametrize("biased", [False, True])
@torch.no_grad()
def test_the_twins_of_timm_and_transformers_have_the_same_tokens(biased: bool) -> None:
    """What is pooled differs by design: timm takes the mean of the patches, transformers the class token."""
    name = "vit_small_patch16_dinov3_qkvb" if biased else "vit_small_patch16_dinov3"
    theirs: Any = redrawn(timm.create_model(name, embed_dim=48, depth=2, num_heads=3, img_size=64))
    for block in theirs.blocks:
        block.attn.qkv.weight[:96].mul_(LOUD)
    twin = twin_of(theirs, query_bias=biased, value_bias=biased)
    images = some(64, 64)
    ours, of_timm = (vitrail.convert(each, preprocessing=READS).network for each in (twin, theirs))
    for network in (ours, of_timm):
        assert gap(tokens(network, images), theirs.forward_features(images)) < 1e-5
    assert gap(tokens(ours, images), tokens(of_timm, images)) < 1e-5
    assert gap(ours(images), twin(pixel_values=images).pooler_output) < 1e-5
    assert gap(of_timm(images), theirs(images)) < 1e-5
    assert gap(ours(images), of_timm.pool(tokens(of_timm, images), 5)) > 0.1


@torch.no_grad()
def test_names_of_files_and_of_live_modules_make_one_network(tmp_path: Path) -> None:
    """transformers 5 has the blocks one level deeper than its files have them."""
    module = dinov3(num_register_tokens=4)
    stated, states = {"heads": 2, "image_size": 32}, []
    file = load_file(folder_of(module, tmp_path / "own") / "model.safetensors")
    assert file.keys() != module.state_dict().keys()
    for tensors in (file, module.state_dict()):
        bare = from_tensors(tensors, stated, "a file")
        states.append(bare.network.state_dict())
        assert any("100" in each for each in bare.assumed), "no tensor shows the base"
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("make", [NETWORKS["four registers"], NETWORKS["gated"], lambda: aimv2()])
@torch.no_grad()
def test_a_bare_file_has_the_published_epsilon_and_activation(make: Callable[[], Any], tmp_path: Path) -> None:
    """They are said as assumed; what a person states is taken in their place."""
    module = make()
    config, sizes = module.config.to_dict(), {"heads": 2, "image_size": 32}
    epsilon = config.get("rms_norm_eps") or config["layer_norm_eps"]
    save_file({name: each.contiguous() for name, each in module.state_dict().items()}, tmp_path / "bare.safetensors")
    model = vitrail.load(tmp_path / "bare.safetensors", assume=sizes, preprocessing=READS)
    assert gap(model.network(some(32, 32)), answer(module, some(32, 32))) < 1e-5
    assert {f"norm_eps {epsilon}", f"activation {config['hidden_act']}"} <= {
        *re.split(", |; ", model.facts["assumed"].replace(", as published", ""))
    }
    other = vitrail.load(tmp_path / "bare.safetensors", assume={**sizes, "norm_eps": 1e-3}, preprocessing=READS)
    assert other.network.config.norm_eps == 1e-3
    assert "norm_eps" not in other.facts["assumed"]


@torch.no_grad()
def test_a_live_network_of_another_precision_is_proved_in_fp32() -> None:
    """Its periods, which that rounds, are made anew; inside another module as well, and those of timm there."""
    made = [dinov3(num_register_tokens=4), dinov3("DINOv3ViTBackbone", rope_theta=50.0), Classifier(dinov3())]
    of_timm = redrawn(timm.create_model("vit_small_patch16_dinov3", embed_dim=64, depth=2, num_heads=4, img_size=32))
    in_half = dinov3()
    for module in (*made, nn.Sequential(of_timm, nn.Identity()), in_half):
        kind = torch.float16 if module is in_half else torch.bfloat16
        peer, module = copy.deepcopy(module), module.to(kind).eval()
        model = vitrail.convert(module, preprocessing=READS)
        peer.load_state_dict({name: each.float() for name, each in module.state_dict().items()})
        exact = vitrail.convert(peer, preprocessing=READS)
        assert gap(model.network(some(32, 32)), exact.network(some(32, 32))) == 0
        assert next(module.parameters()).dtype == kind
    rounded = dinov3()
    rounded.rope_embeddings.inv_freq.copy_(rounded.rope_embeddings.inv_freq.to(torch.bfloat16))
    with must_raise(DataError, "gap"):  # in fp32 it answers with them
        vitrail.convert(rounded)


@pytest.mark.parametrize("kind", ["Siglip", "Aimv2", "CLIP"])
def test_a_live_network_for_both_names_its_part_for_images(kind: str) -> None:
    text = {**TEXT, "bos_token_id": 1, "pad_token_id": 0}
    config = getattr(t, f"{kind}Config")(vision_config=SMALL, text_config=text)
    module = loud(getattr(t, f"{kind}Model")(config))
    holding = nn.Sequential(nn.Identity(), module)
    for live, part in ((module, module.vision_model), (holding, module.vision_model)):
        with must_raise(UsageError, f"{kind}Model|Sequential") as caught:
            vitrail.convert(live)
        assert "Error" not in caught.value.problem
        offered = str(caught.value.hint).partition("convert(")[2].partition("),")[0]
        assert eval(offered, {"module": live}) is part
    assert vitrail.convert(module.vision_model, preprocessing=READS).network.config.width == 32


class Classifier(nn.Module):
    """With a head of its own, whose name is that of AIMv2's pooling."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.vit, self.head = inside, nn.Linear(32, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.vit(pixel_values=images).pooler_output)


@pytest.mark.parametrize("make", [lambda: dinov3(num_register_tokens=4), aimv2])
@torch.no_grad()
def test_one_inside_another_module_opens_with_its_head(make: Callable[[], Any], tmp_path: Path) -> None:
    """Live, and as a state dict whose prefix is one of transformers' own."""
    module = Classifier(make()).eval()
    live, images = vitrail.convert(module, preprocessing=READS), some(32, 32)
    assert gap(live.network(images), module(images)) < 1e-5
    save_file(module.state_dict(), tmp_path / "trained.safetensors")
    config = live.network.config
    stated = {name: getattr(config, name) for name in ("heads", "norm_eps", "activation", "image_size")}
    file = vitrail.load(tmp_path / "trained.safetensors", assume=stated, preprocessing=READS)
    assert gap(file.network(images), module(images)) < 1e-5


@torch.no_grad()
def test_stored_periods_are_those_of_the_configuration(tmp_path: Path) -> None:
    """As they are, or rounded to bfloat16; those of a base that is 5 % larger are refused, and so is another number."""
    module = dinov3(num_register_tokens=4)
    own, name = module.rope_embeddings.inv_freq.clone(), "rope_embeddings.inv_freq"
    plain = opened(folder_of(module, tmp_path / "plain")).network(some(32, 32))
    for agreeing in (own, own.bfloat16()):
        model = opened(folder_of(module, tmp_path / "own", **{name: agreeing}))
        assert torch.equal(model.network(some(32, 32)), plain)
    larger = 1.05 ** -(torch.arange(4) / 4) * own
    for other, wanted in ((larger, "100"), *((each, r"\b4\b") for each in (own[:2], own * torch.nan, own[:0]))):
        with must_raise(DataError, wanted):
            opened(folder_of(module, tmp_path / "own", **{name: other.clone()}))


def test_a_bias_of_keys_is_missing_by_name_or_not_at_all(tmp_path: Path) -> None:
    """Zeros are a bias; one that is lost in one block, or in all of them against the configuration, is not made up."""
    folder = folder_of(dinov3(key_bias=True), tmp_path / "own")
    tensors = load_file(folder / "model.safetensors")
    biases = [name for name in tensors if name.endswith("k_proj.bias")]
    assert len(biases) == 2
    save_file({**tensors, **{name: torch.zeros(32) for name in biases}}, folder / "model.safetensors")
    network = vitrail.load(folder, preprocessing=READS).network
    assert network.state_dict()["blocks.0.attn.qkv.bias"][32:64].abs().max() == 0
    assert type(network.get_submodule("blocks.0.attn.qkv")) is nn.Linear
    for gone in (biases[:1], biases):
        save_file({name: each for name, each in tensors.items() if name not in gone}, folder / "model.safetensors")
        with must_raise(DataError, "k_proj.bias|key_bias"):
            vitrail.load(folder, preprocessing=READS)
    for given in ({"query_bias": False}, {"value_bias": False}, {"query_bias": False, "value_bias": False}):
        with must_raise(DataError, "False"):
            vitrail.convert(dinov3(**given, key_bias=True))


def test_what_is_refused_by_name(tmp_path: Path) -> None:
    """Positions for any image size, and a size without whole patches; neither is saved as a network without them."""
    native = aimv2(is_native=True)
    for source in (lambda: vitrail.convert(native), lambda: opened(folder_of(native, tmp_path / "native"))):
        with must_raise(DataError, "is_native"):
            source()
    module = dinov3(num_register_tokens=4)
    model = vitrail.convert(module, preprocessing=READS)
    with must_raise(UsageError, "44"):
        vitrail.load(folder_of(module, tmp_path / "own"), preprocessing=READS, image_size=(32, 44))
    with must_raise(UsageError, "33"):
        model.network(some(32, 33))
    with must_raise(UsageError, "36x36"):
        vitrail.convert(dinov3(image_size=36))


@torch.no_grad()
def test_what_is_saved_opens_and_does_not_pass_for_a_plain_network(tmp_path: Path) -> None:
    for number, module in enumerate((dinov3(key_bias=True), dinov3(num_register_tokens=4), aimv2())):
        model = vitrail.convert(module, preprocessing=READS)
        folder = tmp_path / str(number)
        model.save(folder)
        assert torch.equal(vitrail.load(folder).network(some(32, 32)), model.network(some(32, 32)))
        assert '"architecture"' not in (folder / "config.json").read_text()
        for library in ("transformers", "timm"):
            with must_raise(UsageError, library):
                vitrail.export(model, to=library, out=tmp_path / library)  # pyrefly: ignore[bad-argument-type]


@torch.no_grad()
def test_a_name_in_the_hub_shows_its_licence(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And one that is gated where to ask, and where its files belong."""
    repository = "facebook/dinov3-vits16-pretrain-lvd1689m"
    module = dinov3(num_register_tokens=4)
    folder = folder_of(module, tmp_path / "own")
    t.DINOv3ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    card = "---\nextra_gated_fields:\n  Country: country\nlicense: other\nlicense_name: dinov3-license\n---\n# DINOv3\n"
    (folder / "README.md").write_text(card)
    hubs.put(repository, folder)
    model = vitrail.load(f"hf:{repository}")
    assert model.facts["licence"] == "dinov3-license"
    assert model.preprocessing.size == (32, 32)
    assert model.preprocessing.interpolation == "bilinear"
    assert gap(model.network(some(32, 32)), module(pixel_values=some(32, 32)).pooler_output) < 1e-5
    with monkeypatch.context() as apart, must_raise(DataError, "dinov3-license") as caught:
        hubs.offline(apart)
        vitrail.load("hf:facebook/dinov3-vitb16-pretrain-lvd1689m")
    assert str(hubs.root / "hub" / "models--facebook--dinov3-vitb16-pretrain-lvd1689m") in caught.value.problem
    offered = "hf auth login", "hf download", "huggingface.co/facebook/dinov3-vitb16-pretrain-lvd1689m"
    assert all(each in str(caught.value.hint) for each in offered)
    for name in ("snapshot_download", "model_info"):
        monkeypatch.setattr(huggingface_hub, name, told(errors.GatedRepoError))
    with must_raise(DataError, "gated") as caught:
        vitrail.load("hf:facebook/dinov3-vitb16-pretrain-lvd1689m")
    assert "huggingface.co/facebook/dinov3-vitb16-pretrain-lvd1689m" in str(caught.value.hint)
    assert "dinov3-license" in caught.value.problem
    assert str(hubs.root / "hub" / "models--facebook--dinov3-vitb16-pretrain-lvd1689m") in caught.value.problem
