"""Other people's weights, in and out.

names        what a name means: a file, a folder, a name in a hub, whose caches are asked first
files        from files to tensors by name; pickles by a process of their own (`unpickle`)
family       how a library calls its tensors; a file for each: timm (also the way out), transformers, torchvision,
             google, vit_pytorch
probe        from tensors to the network that they make; `assume`: what the user states beside them
convert      tensors or a live network become a network of ours, proved to answer as the original
published    what is known of weights by name and by value, and whether they answer as they should
adapt        other sizes and channels; classifiers: teachers as they are; format1: what vitrail wrote before
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
