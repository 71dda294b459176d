"""What a person asked of a training, laid over what is usual, or held against a run that exists.

Options go before a configuration file, and that before a recipe; a run that goes on accepts no other choice than its
own.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitrail.errors import UsageError
from vitrail.nn import ViTConfig
from vitrail.training.options import TrainOptions
from vitrail.training.settings import Execution, RunSettings, Settings


def asked_for(options: TrainOptions) -> dict[str, Any]:
    """The options that were given, as nested values."""
    names = {
        "epochs": "epochs",
        "batch_size": "batch_size",
        "lr": "learning_rate",
        "weight_decay": "weight_decay",
        "accumulate": "accumulate",
    }
    chosen = {key: getattr(options, option) for option, key in names.items() if getattr(options, option) is not None}
    network = {} if options.image_size is None else {"image_size": options.image_size}
    seeds = {key: getattr(options, key) for key in ("seed", "split_seed") if getattr(options, key) is not None}
    return {"optimization": chosen, "network": network, **seeds}


def laid_over(values: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`values` with everything in `above` laid over it, section by section."""
    laid = dict(values)
    for key, value in above.items():
        inner = laid.get(key)
        laid[key] = laid_over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return laid


def replayed(options: TrainOptions, stored: Execution, given: dict[str, Any]) -> TrainOptions:
    """The options, where they leave open how to compute, completed by what a configuration file says."""
    values: dict[str, Any] = {**asdict(stored), "compile": "on" if stored.compile else "off"}
    names = given.get("execution", {}).keys() - {"attention_kernel"}  # which no option names
    left = [name for name in names if getattr(options, name) in (None, "auto")]
    return replace(options, **{name: values[name] for name in left})


def precision_is_open(options: TrainOptions, given: dict[str, Any]) -> bool:
    """Whether neither the options nor a configuration file decide the precision."""
    return options.precision == "auto" and "precision" not in given.get("execution", {})


def differences(settings: Settings, data: str, options: TrainOptions, root: str) -> list[str]:
    """What the options ask for that a run which exists was not started with, as `name: old -> new`.

    Args:
        settings: Of the run.
        data: What is asked for now; empty for what the run was started with.
        options: What is asked for now.
        root: Where the run read its data.
    """
    changed = run_differences(settings, data, options, root)
    if options.size is not None:
        size = ViTConfig.from_size(options.size, image_size=settings.network.image)
        shapes = [(n.patch, n.width, n.depth, n.heads, n.mlp_width) for n in (size, settings.network)]
        if shapes[0] != shapes[1]:
            changed.append(f"size: another network -> {options.size}")
    if settings.references and not options.references:
        changed.append("references: yes -> no")
    return changed


def run_differences(settings: RunSettings, data: str, options: TrainOptions, root: str) -> list[str]:
    """What `differences` says of a run of any kind."""
    changed = []
    if data and data != settings.data and Path(data).resolve() != Path(root):
        changed.append(f"data: {settings.data} -> {data}")
    if options.recipe not in ("auto", settings.recipe):
        changed.append(f"recipe: {settings.recipe} -> {options.recipe}")
    stored: dict[str, Any] = asdict(settings)
    for section, wanted in asked_for(options).items():
        pairs = wanted.items() if isinstance(wanted, dict) else [(section, wanted)]
        for key, new in pairs:
            old = stored[section][key] if isinstance(wanted, dict) else stored[section]
            if key == "image_size" and not isinstance(new, tuple):
                new = (new, new)
            if old != new:
                changed.append(f"{key}: {old} -> {new}")
    execution: dict[str, Any] = {**asdict(settings.execution), "compile": "on" if settings.execution.compile else "off"}
    for name in ("device", "threads", "precision", "compile"):
        if getattr(options, name) not in (None, "auto", execution[name]):
            changed.append(f"{name}: {execution[name]} -> {getattr(options, name)}")
    return changed


def check_same(changed: list[str], folder: Path) -> None:
    """Refuse to go on with a run that was started differently.

    Raises:
        UsageError: If anything differs; lists old -> new.
    """
    if changed:
        raise UsageError(
            f"{folder} was started with other options: {'; '.join(changed)}",
            f"leave these out to go on as before, or another --out than {folder}",
        )
