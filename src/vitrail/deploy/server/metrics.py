"""What a server counts, in the text format of Prometheus."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from vitrail.deploy.server.pool import Pool

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, inf)  # seconds
METRICS = {  # kind, and what it is
    "vitrail_requests_total": ("counter", "Requests that were answered, or refused; 499 is a client that has gone."),
    "vitrail_request_seconds": ("histogram", "Seconds from the headers of a request to its answer, where that is 200."),
    "vitrail_queue_length": ("gauge", "Requests that wait for a process."),
    "vitrail_workers": ("gauge", "Processes that answer."),
    "vitrail_worker_restarts_total": ("counter", "Processes that ended or got stuck, and were replaced."),
    "vitrail_model_info": ("gauge", "1 for each model, with the version of its weights."),
    "process_start_time_seconds": ("gauge", "When the server was started, in seconds since 1970."),
}

Sample = tuple[str, Mapping[str, object], float]  # what follows the name of the metric, labels, value


class RequestCounts:
    """Requests by model, route and status, and how long those took that were answered.

    Attributes:
        statuses: How many requests there were of each; the model is empty where it is not known.
        seconds: By model and route how many took at most so long as each of `BUCKETS`, and the sum of seconds.
    """

    def __init__(self) -> None:
        self.statuses, self.seconds = Counter[tuple[str, str, int]](), dict[tuple[str, str], list[float]]()
        self.began = time.time()

    def add(self, model: str, route: str, status: int, seconds: float) -> None:
        """Take note of a request that is answered."""
        self.statuses[model, route, status] += 1
        if status == 200:
            row = self.seconds.setdefault((model, route), [0.0] * (len(BUCKETS) + 1))
            row[:] = [*(n + (seconds <= limit) for n, limit in zip(row, BUCKETS, strict=False)), row[-1] + seconds]

    def text(self, pools: Mapping[str, Pool], versions: Mapping[str, str]) -> str:
        """All counts.

        Args:
            pools: By what they are for.
            versions: Of the models by name.
        """
        took = list[Sample]()
        for (model, route), (*counts, total) in sorted(self.seconds.items()):
            own = {"model": model, "route": route}
            limits = ("+Inf" if limit == inf else f"{limit:g}" for limit in BUCKETS)
            took += [("_bucket", {**own, "le": limit}, n) for limit, n in zip(limits, counts, strict=True)]
            took += [("_sum", own, total), ("_count", own, counts[-1])]
        samples: Sequence[Sequence[Sample]] = (  # in the order of METRICS
            [
                ("", dict(zip(("model", "route", "status"), of, strict=True)), n)
                for of, n in sorted(self.statuses.items())
            ],
            took,
            [("", {"pool": name}, len(pool.jobs)) for name, pool in pools.items()],
            [("", {"pool": name}, len(pool.workers)) for name, pool in pools.items()],
            [("", {"pool": name}, pool.restarts) for name, pool in pools.items()],
            [("", {"model": name, "version": version}, 1) for name, version in versions.items()],
            [("", {}, self.began)],
        )
        lines = list[str]()
        for (name, (kind, what)), rows in zip(METRICS.items(), samples, strict=True):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{end}{_labels(labels)} {value:.15g}" for end, labels, value in rows]
        return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, object]) -> str:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    words = ",".join(f'{name}="{str(value).translate(escaped)}"' for name, value in labels.items())
    return f"{{{words}}}" if words else ""
