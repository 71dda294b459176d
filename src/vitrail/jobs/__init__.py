"""Work over many images that survives whatever ends it, in one process or by the workers of a Ray cluster.

parts        the one pass over images: so many at a time are computed, and stored as one part beside a file until it is
             whole, and never done twice
cluster      the cluster of Ray that is joined, or started on this machine
cluster_guard  stops a cluster of this machine whose driver has ended
on_ray       ranges as tasks of Ray: the workers, and the driver that hands ranges out
precision    a model as every process of a job opens it, in fp32 or bf16
own_code     what a job knows a person's own functions and classes by
answers      what a model answers to many images, as CSV or Parquet
"""

__all__ = ()
