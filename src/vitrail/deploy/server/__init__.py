"""`vitrail serve`: a server that answers, or says at once that it cannot.

launch     the socket and the processes; `listening`: HTTP, signals, and the exchange of models; no torch
app        routes, limits, and the one form of an error
pool       the processes that answer, each one request at a time, and the queue before them
worker     such a process: it decodes, and has the models answer: `models`, or `exports`, which need no torch
"""

__all__ = ()
