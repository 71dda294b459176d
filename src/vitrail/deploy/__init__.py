"""Models that leave the house, and were seen to answer alike where they will run.

export       `vitrail.export`: one call for every target, and what it was seen to do
onnx         a model as one graph that takes pixels, with all that a reader needs in its metadata
positions    positions for images of any size, in such a graph
proof        the readers answer image files; what they say is held against the model
predict.*    these readers, which know nothing of vitrail
"""

__all__ = ()
