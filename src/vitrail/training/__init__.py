"""Training, in the order of what happens.

options      what a person may ask for; `recipes` are named sets of choices
train        `train` and `distill`: the whole run in one call, from `request` to `Finished`
resolve      options, a configuration file and own objects become `settings`, with what `execution` picks by size
setup        settings and data become what is trained (`prepared`), anew or where a run stopped
distill/     the same with a teacher
job          one run under way: saves, scores and tells
loop         batches and an objective move the weights by `schedule` and `optimizer`, and yield events
checkpoint   the state on disk; `run` is the folder it lies in
events       what listeners get; `report` writes the page of a run
evaluate     how well the model does, once at the end, and whenever it is asked
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
