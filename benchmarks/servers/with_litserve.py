"""LitServe: `python -m benchmarks.servers.with_litserve PORT PROCESSES`. All else is as it comes: no batches, 30 s."""

import sys
from typing import Any

import litserve


class Api(litserve.LitAPI):
    """The network behind LitServe."""

    def setup(self, device: str) -> None:
        """Load it, in each of the processes that compute."""
        from benchmarks.servers.answering import answering  # not where only other processes are started

        self.answer = answering()

    def decode_request(self, request: litserve.Request) -> bytes:
        """The bytes of the image in the form."""
        return request["image"].file.read()

    def predict(self, x: bytes) -> dict[str, Any]:
        """The answer."""
        return self.answer(x)

    def encode_response(self, output: dict[str, Any]) -> litserve.Response:
        """It is JSON already."""
        return output


if __name__ == "__main__":
    port, processes = map(int, sys.argv[1:])
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=processes)
    server.run(host="127.0.0.1", port=port, generate_client_file=False)
