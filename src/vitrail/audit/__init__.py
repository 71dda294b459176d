"""Whether a network looks at the right thing, over a whole set, and what else speaks for a class.

edits        what can be moved from one image to another: the catalogue in which shortcuts are looked for
sampling     which images are asked
areas        where the evidence of an image lies: border, mask, background
shortcuts    what moving a part does, and which parts are named
job          all of it over a set: `audit`
rules        rules for a pipeline, and what changed since an earlier audit
result       what was found: its sentences, figures, JSON and page
"""

import lazy_loader

from vitrail.arguments import typed_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = typed_names(_find, globals())
