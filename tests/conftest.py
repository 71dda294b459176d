"""What all tests share: one torch thread each, what a user meets, real MNIST, a folder of generated photographs."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

import tests.shapes  # noqa: F401  (the check of types that pyproject.toml names: loaded before the package is)

# torch and vitrail are imported where they are used: the process that only hands out tests starts five seconds sooner.

# No test looks at the clock: what is slow on a busy machine is not wrong.
# Nor does it draw other examples each time: `make soak` does, and says how to draw them again.
settings.register_profile("vitrail", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("soak", settings.get_profile("vitrail"), derandomize=False, print_blob=True)

gc.disable()  # until everything is imported and collected: nothing of that is garbage

# A GPU computes other last bits than those that tests hold answers against: `make gpu` shows it to its own tests.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

_FILE = "train-images-idx3-ubyte.gz"


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if config.getoption("markexpr") == "soak" else "vitrail")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(7000)  # ten times what is usual: a thirtieth of the suite's time was spent looking for garbage
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several workers share the cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def spared() -> Iterator[None]:
    """Nothing waits for the disk, nor for stacks that nobody reads."""
    from tests.spared import spare

    with pytest.MonkeyPatch.context() as patch:
        spare(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def a_cache_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept for a user is neither read nor written; all workers of this session share one folder."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    cache.mkdir(exist_ok=True)  # torch warns where it cannot keep its kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests/shared_runs.py makes lies in one folder for all workers of this session."""
    from tests import shared_runs as runs

    base = tmp_path_factory.getbasetemp()
    runs.share_below((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared")
    yield
    runs.must_be_unchanged()


@pytest.fixture
def as_a_user() -> Iterator[None]:
    """Without the check of annotations, which only tests have and which would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def mnist_root(as_a_user: None, mnist_folder: Path) -> Path:
    """`mnist_folder`, read as a user does: to check the name of each of 70,000 images takes longer than all else."""
    return mnist_folder


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    """The folder with MNIST's four files: $VITRAIL_DATA, or `../shared/data/mnist` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    named = os.environ.get("VITRAIL_DATA")
    for root in (Path(named) if named else beside, beside):
        for folder in (root, root / "mnist", root / "MNIST" / "raw"):
            if (folder / _FILE).is_file():
                return folder
    pytest.skip("real MNIST is not here: set VITRAIL_DATA to the folder that holds its four files")


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with train/ and val/ of three classes of generated photographs: 20 and 5 of each."""
    from tests.photographs import make_photographs

    root = tmp_path_factory.mktemp("photographs")
    classes = ("beach", "field", "night")
    make_photographs(root / "train", classes, per_class=20, seed=0)
    make_photographs(root / "val", classes, per_class=5, seed=1)
    return root
