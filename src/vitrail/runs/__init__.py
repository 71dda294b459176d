"""Runs: what one training wrote, for all that comes after it.

folder       the files of a run, under fixed names
settings     all that decides its result; `config.yaml`
contracts    what a user's own task, reader, network and objective must do
data         the data of a run, or others, opened to evaluate or explain its model; the parts of its validation split
group        the processes that train or evaluate together
evaluate     how well a model does on data
"""

__all__ = ()
