"""FastAPI and uvicorn: `python -m benchmarks.servers.with_fastapi PORT PROCESSES`. The simplest application.

`def`, not `async def`, as FastAPI's pages advise for what computes: it runs in one of 40 threads of its process.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, UploadFile


def application() -> FastAPI:
    """The application of one process, with its network."""
    from benchmarks.servers.answering import answering  # not where only other processes are started

    app, answer = FastAPI(), answering()

    @app.post("/predict")
    def predict(image: UploadFile) -> dict[str, Any]:
        return answer(image.file.read())

    return app


if __name__ == "__main__":
    port, processes = map(int, sys.argv[1:])
    uvicorn.run("benchmarks.servers.with_fastapi:application", factory=True, port=port, workers=processes)
