"""From what a person requests to the settings of a run, in the order in which it happens.

request      options (`vitrail.options`), a configuration file and objects of one's own, as one value
resolve      the request becomes settings, by the data, a recipe (`recipes.yaml`) and the size of the work
settings     all that decides the result of a run; checked, and written as `config.yaml`
refusals     what does not go together, or has no effect
"""

__all__ = ()
