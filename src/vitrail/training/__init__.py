"""Training, in the order in which a run uses it.

train        `train`, `distill` and `plan_training`: a whole run in one call, from its options to `Finished`
             `configuration/` makes the settings of a run from options, a configuration file and a recipe
setup        settings and data become what is trained (`prepared`), for a new or a resumed run
             `transfer/` takes from other models
job          one run: it follows the loop, evaluates each epoch and saves into the folder of `vitrail.runs`
finish       its end, step by step: the model is chosen, saved, evaluated, tested and written
follow       the first process leads, the others follow; `distributed/` opens and watches them
loop         the training loop: batches, an objective and the `optimizer` with its schedule; it yields events
checkpoint   saved states, and the best network, which becomes the model
events       what listeners get; `report` keeps the journal of a run and writes its page
"""

__all__ = ()
