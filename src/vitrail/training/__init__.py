"""Training: objectives, the one loop, optimizer and schedule, recipes, run folder and resume, metrics."""

__all__ = []
