"""Pretrained weights: other people's ViTs become ours, and back.

names        from a name to files: a path, or a name in a hub, whose caches are searched first
files        from files to tensors by name; pickles in a separate process (`unpickle`)
family       what a family is: the names of its tensors and what it states beside them; a file for each: timm (also the
             way back), transformers, torchvision, google, vit_pytorch
infer        from tensors to the network that they make; `assume`: what the user states beside them
convert      the whole way from tensors or a live module, proved to give equal logits
published    known weights by name and by value, and whether they give the logits that they should
adapt        other image sizes and channels; classifiers: teachers that are not converted
saved        folders that vitrail writes: timm's keys beside ours, and what others wrote over them
native       our network as transformers and torchvision have it: the same tables, read backwards
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
