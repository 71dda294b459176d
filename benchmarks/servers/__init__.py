"""The same network behind other servers, as a person would write it with timm, for `benchmarks.serve`.

answering      the network: bytes of an image in, the five likeliest classes out
with_litserve  LitServe: `python -m benchmarks.servers.with_litserve PORT PROCESSES`
with_fastapi   FastAPI and uvicorn: `python -m benchmarks.servers.with_fastapi PORT PROCESSES`

All read the weights in `$VITRAIL_BENCH_WEIGHTS`; nothing here imports vitrail.
"""
