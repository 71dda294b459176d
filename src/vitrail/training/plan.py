"""What would be trained, as one value: said before anything is, by `vitrail train ... --dry-run`."""

from dataclasses import asdict, dataclass
from typing import Any

from vitrail.training.loop import steps_per_epoch
from vitrail.training.optimizer import Rule, parameter_rules
from vitrail.training.prepared import Prepared
from vitrail.training.settings import Settings, settings_to_dict


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be trained.

    Attributes:
        settings: All choices.
        samples: Of each split.
        unit: What one sample is called.
        rules: What is done with which parameters; each parameter stands in one row.
        steps: Of the optimizer; 0 where the head is fitted to features that are computed once.
        seconds: That they take, from timed steps.
        notes: What was said of the data and of each choice.
    """

    settings: Settings
    samples: dict[str, int]
    unit: str
    rules: tuple[Rule, ...]
    steps: int
    seconds: float
    notes: tuple[str, ...]

    def rate(self, rule: Rule) -> float:
        """The highest learning rate of some parameters."""
        return rule.rate * self.settings.optimization.learning_rate

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the rate of a row is the highest one."""
        return {
            "data": self.settings.data,
            "recipe": self.settings.recipe,
            "samples": self.samples,
            "parameters": [{**asdict(rule), "rate": self.rate(rule)} for rule in self.rules],
            "steps": self.steps,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "settings": settings_to_dict(self.settings),
        }


def plan_of(prepared: Prepared, began: float) -> Plan:
    """What a prepared training that was asked for at this time would do."""
    settings, choices = prepared.settings, prepared.settings.optimization
    steps = 0 if settings.fits_head else choices.epochs * steps_per_epoch(len(prepared.data), choices)
    notes = prepared.notes
    if budget := prepared.budget(began, 0.0):
        phase = budget.plan(choices, least=0 if settings.initial is not None else 1)
        steps, notes = phase.steps, (*notes, phase.why)
    return Plan(
        settings=settings,
        samples={name: len(samples) for name, samples in prepared.dataset.splits.items()},
        unit=prepared.unit,
        rules=tuple(parameter_rules(prepared.network, choices)),
        steps=steps,
        seconds=steps * prepared.step_seconds,
        notes=notes,
    )
