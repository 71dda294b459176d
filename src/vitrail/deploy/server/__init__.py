"""`vitrail serve`: a server that answers, or says at once that it cannot.

launch   the process that listens: it measures, handles signals, and exchanges models; it loads no torch
app      routes, limits, and the one form of an error
pool     the processes that answer, each one request at a time, and the queue before them
worker   such a process: it holds the models, decodes and computes
"""

__all__ = ()
