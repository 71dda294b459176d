"""From what a person requests to the settings of a run (`vitrail.runs.settings`), in the order in which it happens.

request      options (`vitrail.options`), a configuration file and objects of one's own, as one value
teacher      a frozen classifier whose predictions a student learns
recipes      which recipes there are, and fit
resolve      the request becomes settings, by the data, a recipe (`recipes.yaml`) and the size of the work
refusals     what does not go together, or has no effect
"""

__all__ = ()
