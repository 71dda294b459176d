"""Work over many images that survives whatever ends it, in one process or by the workers of a Ray cluster.

ranges       the one pass over images: so many at a time are computed, stored as one part, and never done twice
parts        the part files beside a file until it is whole, and what decides their bytes
cluster      the cluster of Ray that is joined, or started on this machine
cluster_guard  stops a cluster of this machine whose driver has ended
on_ray       ranges as tasks of Ray: the workers, and the driver that hands ranges out
precision    a model as every process of a job opens it, in fp32 or bf16
answers      what a model answers to many images, as CSV or Parquet
"""

__all__ = ()
