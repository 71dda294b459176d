"""A teacher is frozen whatever is called on it, sees in its own way, and is matched by name."""

import ast
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch import nn

import vitrail
from tests.data.lab import denormalised
from tests.errors import must_raise
from tests.training.lab import PLAIN, TINY, fresh, same, tiny_set, weights
from tests.training.tiny import Killed, ended_at, student_options
from vitrail.data.augmentation import Augmentation
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.training.configuration.teacher import Teacher, open_teacher
from vitrail.training.transfer.student import DECAY, fit_new_head, with_new_head
from vitrail.weights.classifiers import open_classifier
from vitrail.weights.files import read_weights

CLASSES = tuple("abc")
RGB = Preprocessing((12, 12), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
GREY = Preprocessing((12, 12), channels=1, mean=(0.3,), std=(0.4,))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4, 3))


def pixels(channels: int, *size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (4, channels, *size), generator=generator, dtype=torch.uint8)


# ---- frozen


def test_it_answers_in_eval_mode_whatever_is_called_on_it() -> None:
    network = cnn()
    teacher, images = Teacher(network, RGB, CLASSES), RGB.normalise(pixels(3, 12, 12))
    before, expected = weights(network), cnn().eval()(images).detach()
    for turn in (True, False):
        network.train(turn)
        torch.testing.assert_close(teacher.answer(images, RGB), expected)
        assert all(module.training == turn for module in network.modules()), "left as it was"
    assert same(weights(network), before)
    with torch.no_grad():
        network.train()(images)
    assert not same(weights(network), before), "the planted fault: asked directly, it drifts"


def test_no_graph_no_gradient_and_its_own_precision() -> None:
    network = cnn()
    images = RGB.normalise(pixels(3, 12, 12)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        answer = Teacher(network, RGB, CLASSES).answer(images, RGB)
    assert not answer.requires_grad
    assert answer.dtype == torch.float32
    torch.testing.assert_close(answer, cnn().eval()(images).detach())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


def test_a_function_is_a_teacher_too() -> None:
    teacher = Teacher(lambda images: images.mean(dim=(2, 3)), RGB, CLASSES)
    images = RGB.normalise(pixels(3, 12, 12))
    torch.testing.assert_close(teacher.answer(images, RGB), images.mean(dim=(2, 3)))
    assert not list(teacher.module.parameters())


# ---- its own way of seeing


def test_the_same_images_in_its_own_scale() -> None:
    some, student = pixels(3, 12, 12), Preprocessing((12, 12), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    view = Teacher(cnn(), RGB, CLASSES).view(student.normalise(some), student)
    torch.testing.assert_close(view, RGB.normalise(some), rtol=1e-5, atol=1e-5)


def test_grey_becomes_three_equal_channels() -> None:
    some = pixels(1, 12, 12)
    view = Teacher(cnn(), RGB, CLASSES).view(GREY.normalise(some), GREY)
    torch.testing.assert_close(view, RGB.normalise(some.expand(-1, 3, -1, -1).contiguous()), rtol=1e-5, atol=1e-5)


def test_colour_becomes_grey_as_pillow_makes_it() -> None:
    some = pixels(3, 12, 12)
    view = Teacher(cnn(), GREY, CLASSES).view(RGB.normalise(some), RGB)
    ours = view * GREY.std[0] + GREY.mean[0]
    for image, grey in zip(some, ours, strict=True):
        pillow = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"), np.float32) / 255
        np.testing.assert_allclose(grey[0].numpy(), pillow, atol=1.01 / 255)


@pytest.mark.parametrize("size", [(24, 24), (7, 9), (12, 20)])
def test_another_size_is_what_pillow_would_give(size: tuple[int, int]) -> None:
    some, own = pixels(3, 16, 16) // 2 + 64, replace(RGB, size=size)  # where nothing overshoots
    student = Preprocessing((16, 16))
    view = Teacher(cnn(), own, CLASSES).view(student.normalise(some), student)
    ours = denormalised(own, view)
    for image, found in zip(some, ours, strict=True):
        resized = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size[::-1], Image.Resampling.BICUBIC)
        difference = np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(resized, int))
        assert difference.max() <= 2


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([1, 3]), st.sampled_from([1, 3]), st.integers(4, 20), st.integers(4, 20))
def test_any_student_can_be_seen(channels: int, own: int, height: int, width: int) -> None:
    student = Preprocessing((height, width), channels=channels, mean=(0.3,) * channels, std=(0.2,) * channels)
    sees = Preprocessing((9, 11), channels=own, mean=(0.5,) * own, std=(0.1,) * own)
    view = Teacher(cnn(), sees, CLASSES).view(student.normalise(pixels(channels, height, width)), student)
    assert view.shape == (4, own, 9, 11)
    assert float((view * 0.1 + 0.5).min()) >= -1e-5
    assert float((view * 0.1 + 0.5).max()) <= 1 + 1e-5


# ---- its classes


@settings(deadline=None, max_examples=25)
@given(st.permutations("abcdef"), st.integers(2, 6))
def test_columns_follow_the_names(names: list[str], count: int) -> None:
    teacher = Teacher(lambda images: images.flatten(1)[:, :6], RGB, tuple(names))
    wanted = tuple(sorted(names[:count]))
    images = torch.randn(3, 3, 12, 12)
    answer, chosen = teacher.answer(images, RGB), teacher.matched(wanted).answer(images, RGB)
    for column, name in enumerate(wanted):
        assert torch.equal(chosen[:, column], answer[:, names.index(name)])


@pytest.mark.parametrize(("names", "named"), [("xyz", "a, b, c"), ("abx", "c"), ("abcc", "c")])
def test_names_that_do_not_match_are_refused(names: str, named: str) -> None:
    with must_raise(DataError, rf"\b{named}\b") as error:
        Teacher(cnn(), RGB, tuple(names)).matched(CLASSES)
    assert error.value.hint.flags == {"fit_head": "always"}


# ---- what cannot teach

DIGITS = tuple("0123456789")


def ten() -> nn.Sequential:
    """A small network for ten classes, with statistics of its own."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4, 10))


def connect(
    folder: Path, network: Callable[[torch.Tensor], Any], preprocessing: Preprocessing = RGB, **more: Any
) -> None:
    """It may teach the digits: the first step is made, and no other."""
    teacher = Teacher(network, preprocessing, more.get("classes", DIGITS), "broken")
    with pytest.raises(Killed):
        vitrail.distill("digits", teacher, folder / "run", student_options(), ended_at(1))


def test_a_function_in_train_mode_is_refused(tmp_path: Path) -> None:
    network = ten().train()
    with must_raise(UsageError):
        connect(tmp_path, lambda images: 5 * network(images))
    connect(tmp_path, network)  # a module is put into eval mode


def test_a_wrong_number_of_logits_is_refused(tmp_path: Path) -> None:
    with must_raise(UsageError, r"\(8, 10\).*\(8, 11\)"):
        connect(tmp_path, ten(), classes=(*DIGITS, "ten"))


def test_images_that_it_cannot_read_are_refused(tmp_path: Path) -> None:
    with must_raise(UsageError, "RuntimeError"):
        connect(tmp_path, ten(), GREY)


@dataclass
class Output:
    """What networks of other libraries give: logits among other things."""

    logits: torch.Tensor


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        (Output, "Output"),
        (lambda logits: {"logits": logits}, "dict"),
        (lambda logits: (logits, logits), "tuple"),
        (lambda logits: {"logits": logits}["logit"], "KeyError"),
        (lambda logits: logits.logits, "AttributeError"),
    ],
    ids=["an object", "a dict", "a tuple", "a key that is missing", "an attribute that is missing"],
)
def test_what_is_no_tensor_of_logits_is_refused(wrap: Callable[..., Any], named: str, tmp_path: Path) -> None:
    network = ten().eval()
    with must_raise(UsageError, named) as caught:
        connect(tmp_path, lambda images: wrap(network(images)))
    assert "lambda x: model(x).logits" in str(caught.value.hint)


@pytest.mark.usefixtures("as_a_user")
def test_the_way_out_that_is_named_is_one(tmp_path: Path) -> None:
    network = ten().eval()

    def model(images: torch.Tensor) -> Output:
        return Output(network(images))

    with must_raise(UsageError, "Output"):
        connect(tmp_path, model)
    connect(tmp_path, lambda x: model(x).logits)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    network = ten().eval()
    with must_raise(DataError):
        connect(tmp_path, lambda images: network(images) / 0)


# ---- a new head


def test_the_head_is_the_best_one() -> None:
    """The gradient of the convex problem is zero at the solution, and scikit-learn finds the same."""
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    features = torch.randn(300, 5) * torch.tensor([1.0, 5.0, 0.1, 1.0, 2.0]) + 3
    labels = torch.bucketize(features[:, 0] + 0.3 * features[:, 1] + torch.randn(300), torch.tensor([3.5, 5.0]))
    head = fit_new_head(features, labels, vitrail.Classes(("a", "b", "c")))
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    penalty = 1 / (2 * DECAY * len(features))
    theirs = LogisticRegression(C=penalty, tol=1e-8, max_iter=5000).fit(standard.numpy(), labels.numpy())
    np.testing.assert_allclose(head(features).softmax(1).numpy(), theirs.predict_proba(standard.numpy()), atol=2e-3)


def test_a_new_head_makes_a_teacher_of_other_classes() -> None:
    data = tiny_set(60, Augmentation())
    network = fresh(replace(TINY, classes=7)).network
    teacher = with_new_head(Teacher(network, PLAIN, ()), data, CLASSES)
    right = count = 0
    for some in data.batches(0, 20):
        answer = teacher.answer(some.inputs, data.input)
        assert answer.shape == (20, 3)
        right, count = right + int((answer.argmax(1) == some.labels).sum()), count + 20
    assert right / count > 0.6
    again = with_new_head(Teacher(network, PLAIN, ()), data, CLASSES)
    assert same(weights(teacher.module), weights(again.module))


@pytest.mark.parametrize("token", [False, True])
def test_the_features_of_a_run(token: bool, tmp_path: Path) -> None:
    network = fresh(replace(TINY, distillation_token=token)).network.eval()
    vitrail.save(vitrail.Model(network, PLAIN, vitrail.Classes(CLASSES)), tmp_path)
    images = torch.randn(2, 1, 8, 8)
    record = vitrail.Record()
    answer = network(images, record=record).detach()
    torch.testing.assert_close(open_teacher(tmp_path).answer(images, PLAIN), answer)
    found = open_teacher(tmp_path, head=False).answer(images, PLAIN)
    assert found.shape == (2, 16)
    if not token:
        torch.testing.assert_close(found, record["pooled"])


# ---- plain ViTs of others, which are converted


@pytest.fixture(scope="module")
def small_vit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A ViT of timm, every parameter drawn, and the folder in which a hub would have it."""
    import timm

    arguments = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments).eval()
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("small")
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")
    seen = {"input_size": [3, 16, 16], "mean": RGB.mean, "std": RGB.std, "crop_pct": 1.0, "interpolation": "bicubic"}
    said = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "label_names": CLASSES}
    (folder / "config.json").write_text(json.dumps({**said, "pretrained_cfg": seen}))
    return folder, network


@torch.no_grad()
def test_a_vit_of_others_teaches_as_it_answers(small_vit: tuple[Path, Any]) -> None:
    folder, theirs = small_vit
    images = torch.randn(4, 3, 16, 16)
    for name in (folder, str(folder), folder / "model.safetensors"):
        teacher = open_teacher(name)
        assert (teacher.classes, teacher.preprocessing.mean) == (CLASSES, RGB.mean)
        torch.testing.assert_close(teacher.answer(images, teacher.preprocessing), theirs(images))
    features = open_teacher(folder, head=False)
    assert features.classes == ()
    read = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    torch.testing.assert_close(features.answer(images, features.preprocessing), read)


@torch.no_grad()
def test_a_network_without_classes_gives_its_features(small_vit: tuple[Path, Any], tmp_path: Path) -> None:
    """As DINO's: a new head reads what it gives."""
    folder, theirs = small_vit
    whole = safetensors.torch.load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in whole.items() if not name.startswith("head.")}
    safetensors.torch.save_file(left, tmp_path / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_classes": 0, "label_names": []}))
    images = torch.randn(4, 3, 16, 16)
    for head in (True, False):
        teacher = open_teacher(tmp_path, head=head)
        assert teacher.classes == ()
        answer = teacher.answer(images, teacher.preprocessing)
        torch.testing.assert_close(answer, theirs.forward_features(images)[:, 0])
    with must_raise(DataError) as caught:
        teacher.matched(CLASSES)
    assert caught.value.hint.flags == {"fit_head": "always"}


@pytest.mark.parametrize(
    ("what", "weights", "by"),
    [
        ("timm:vit_tiny_patch16_224", "pretrained", "load"),
        ("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "pretrained", "load"),
        ("torchvision:vit_b_16", "pretrained", "load"),
        ("hf:google/vit-base-patch16-224", "pretrained", "load"),
        ("weights.npz", "pretrained", "load"),
        ("timm:vit_tiny_patch16_224", "random", "open_classifier"),
        ("torchvision:vit_b_16", "file.pth", "open_classifier"),
        ("timm:resnet18", "pretrained", "open_classifier"),
        ("torchvision:resnet18", "pretrained", "open_classifier"),
    ],
)
def test_one_place_decides_what_is_converted(what: str, weights: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def opened(name: str) -> Any:
        def call(*words: object, **more: object) -> Any:
            asked.append((name, *words))
            raise DataError("not here", "elsewhere")

        return call

    for place in ("vitrail.model.confidence.load", "vitrail.training.configuration.teacher.open_classifier"):
        monkeypatch.setattr(place, opened(place.rpartition(".")[2]))
    with pytest.raises(DataError):
        open_teacher(what, weights)
    library, _, rest = what.partition(":")
    assert asked == [("load", what) if by == "load" else (by, library, rest, weights)]


def loaded_by(error: UsageError) -> vitrail.Model:
    """The teacher in the call of `distill` that an error leads to in Python."""
    call = ast.parse(str(error.hint).removesuffix(f", {error.hint.text}"), mode="eval").body
    assert isinstance(call, ast.Call)
    return eval(ast.unparse(call.args[1]), {"vitrail": vitrail})


@torch.no_grad()
def test_what_a_vit_of_others_lacks_is_asked_for(small_vit: tuple[Path, Any], tmp_path: Path) -> None:
    """With the call that says it, until nothing is left open."""
    file = tmp_path / "bare.safetensors"
    shutil.copy(small_vit[0] / "model.safetensors", file)
    with must_raise(UsageError) as caught:
        open_teacher(file)
    assert [*caught.value.hint.flags["assume"]] == ["heads"]
    with must_raise(UsageError) as caught:
        open_teacher(file, assume={"heads": 3})
    model = loaded_by(caught.value)
    images, theirs = torch.randn(4, 3, 16, 16), small_vit[1]
    said = {"heads": 3, "mean": list(RGB.mean), "std": RGB.std}
    teacher = open_teacher(file, assume=said, classes=CLASSES)
    for found in (model.network(images), teacher.answer(images, teacher.preprocessing)):
        torch.testing.assert_close(found, theirs(images))
    assert (teacher.classes, teacher.preprocessing.mean, teacher.preprocessing.std) == (CLASSES, RGB.mean, RGB.std)
    read = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    for classes in (0, 5):  # no head, or one that has learnt nothing: a new one is fitted
        without = open_teacher(file, assume={**said, "classes": classes})
        assert without.classes == ()
        torch.testing.assert_close(without.answer(images, without.preprocessing), read)


def test_the_size_of_a_teacher_is_not_that_of_its_student(small_vit: tuple[Path, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(small_vit[0], tmp_path / "odd")
    side = {"height": 20, "width": 20}
    reads = {"image_processor_type": "ViTImageProcessor", "size": side, "image_mean": RGB.mean, "image_std": RGB.std}
    (folder / "preprocessor_config.json").write_text(json.dumps(reads))
    with must_raise(UsageError, "20") as caught:
        open_teacher(folder)
    assert loaded_by(caught.value).preprocessing.size == (24, 24)


def test_what_says_it_itself_is_not_told(tmp_path: Path) -> None:
    vitrail.save(vitrail.Model(fresh(TINY).network, PLAIN, vitrail.Classes(CLASSES)), tmp_path)
    for name in (str(tmp_path), "torchvision:resnet18"):
        for said in ({"assume": {"mean": 0.5}}, {"classes": CLASSES}):
            with must_raise(UsageError, next(iter(said))):
                open_teacher(name, "random", **said)


# ---- networks of other libraries


def test_a_torchvision_network_is_the_same_at_every_call() -> None:
    found, again = (open_classifier("torchvision", "resnet18", "random") for _ in range(2))
    assert same(weights(found.network), weights(again.network))
    assert not found.network.training
    assert len(found.classes) == 1000
    assert found.classes[:2] == ("tench", "goldfish")


@pytest.mark.parametrize(
    "name",
    [
        *("torchvision:squeezenet1_1", "torchvision:efficientnet_b1", "torchvision:swin_t"),
        *("timm:resnet18", "timm:mobilenetv3_small_050", "timm:test_vit"),
    ],
)
def test_a_photograph_is_prepared_as_its_source_does(name: str, tmp_path: Path) -> None:
    """Within a level of 255; also that a default crop, and a squash, would be seen."""
    import timm
    from torchvision import models

    teacher = open_teacher(name, "random")
    library, _, called = name.partition(":")
    if library == "timm":
        source = timm.data.create_transform(**timm.data.resolve_model_data_config(teacher.module))
    else:
        source = models.get_model_weights(called).DEFAULT.transforms()
    std = torch.tensor(teacher.preprocessing.std)[:, None, None]
    apart: dict[str, float] = {}
    for number, size in enumerate([(375, 500), (501, 334), (171, 258)]):
        coarse = np.random.default_rng(number).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(tmp_path / "photo.jpg", quality=92)
        image: Any = Image.open(tmp_path / "photo.jpg")
        own, side = teacher.preprocessing, teacher.preprocessing.size
        others = {"cropped": Preprocessing(side, mean=own.mean, std=own.std), "squashed": replace(own, resize="squash")}
        for case, reads in {"own": own, **others}.items():
            levels = float(((reads(image) - source(image)).abs() * std * 255).max())
            apart[case] = max(apart.get(case, 0.0), levels)
    assert apart["own"] < 1.01
    assert min(apart["cropped"], apart["squashed"]) > 4


def test_random_weights_leave_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    open_classifier("torchvision", "squeezenet1_1", "random")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("name", "width"), [("resnet18", 512), ("mobilenet_v3_small", 1024), ("vit_b_32", 768), ("squeezenet1_1", 1000)]
)
def test_what_a_torchvision_head_would_read(name: str, width: int) -> None:
    found = open_classifier("torchvision", name, "random", head=False)
    assert found.classes == ()
    size = 224 if name.startswith("vit") else 64
    with torch.no_grad():
        assert found.network(torch.randn(2, 3, size, size)).flatten(1).shape == (2, width)


def test_a_timm_network() -> None:
    import timm

    found = open_classifier("timm", "resnet18", "random")
    assert found.preprocessing.size == (224, 224)
    assert found.classes[0] == "tench"
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18").eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(found.network(images), theirs(images))
    features = open_classifier("timm", "resnet18", "random", head=False)
    with torch.no_grad():
        torch.testing.assert_close(features.network(images), theirs.forward_head(theirs.forward_features(images), True))


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("torchvision:resnet81", "torchvision:resnet18"),
        ("torchvision:fcn_resnet50", "torchvision:"),
        ("timm:resnet81", "timm:resnet"),
        ("hub:some/model", "hf:some/model"),
    ],
)
def test_unknown_names_offer_the_nearest(what: str, hint: str) -> None:
    with must_raise(UsageError, what.partition(":")[2].partition("/")[0] if "hub" not in what else "hub:") as error:
        open_teacher(what, "random")
    assert hint in str(error.value.hint)


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import models

    def unreachable(name: str, weights: object) -> nn.Module:
        raise OSError("no route to host")

    monkeypatch.setattr(models, "get_model", unreachable)
    with pytest.raises(DataError, match="resnet18") as error:
        open_classifier("torchvision", "resnet18")
    assert "teacher_weights" in error.value.hint.flags


# ---- files of weights


@pytest.mark.parametrize(
    "kind",
    [
        "weights.safetensors",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("weights.pth", "checkpoint.pth")),
    ],
)
def test_weights_from_a_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = open_classifier("torchvision", "squeezenet1_1", "random").network
    with torch.no_grad():
        next(network.parameters()).add_(1)
    tensors, file = network.state_dict(), tmp_path / kind
    if kind.endswith("safetensors"):
        safetensors.torch.save_file(tensors, file)
    else:
        torch.save({"state_dict": tensors, "epoch": 3} if kind == "checkpoint.pth" else tensors, file)
    found = open_classifier("torchvision", "squeezenet1_1", str(file))
    assert same(weights(found.network), weights(network))


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    """Pickles that do harm stand in tests/weights/test_hostile.py."""
    with pytest.raises(DataError, match=r"missing\.pth"):
        read_weights(tmp_path / "missing.pth")
    noise = tmp_path / "noise.safetensors"
    noise.write_bytes(b"noise")
    with pytest.raises(DataError, match=r"noise\.safetensors"):
        read_weights(noise)
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(1)}, other)
    with pytest.raises(DataError, match="torchvision:squeezenet1_1"):
        open_classifier("torchvision", "squeezenet1_1", str(other))
