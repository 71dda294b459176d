"""Work that is spared, since no test can see it."""

import os
from collections.abc import Callable
from types import SimpleNamespace

import torch


def spare(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Neither a file nor a seed of this process waits for what no test asks for.

    `fsync` is for power that fails: what a process that is killed has written is there. That it is called, and what
    follows where it fails, is shown by tests which put their own in its place. And at each seed torch formats the stack
    for three kinds of devices, in case that one of them fails later: a millisecond and more, as deep as under pytest.
    """
    patch(os, "fsync", lambda handle: None)
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        patch(kind, "traceback", SimpleNamespace(format_stack=list))
