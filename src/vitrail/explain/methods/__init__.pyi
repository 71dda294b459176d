from .method import Method as Method, Option as Option
from .table import (
    ALL as ALL,
    DEFAULT as DEFAULT,
    METHODS as METHODS,
    METHODS_OF_TEXTS as METHODS_OF_TEXTS,
    USUAL as USUAL,
    MethodLike as MethodLike,
    method_of as method_of,
    methods_of as methods_of,
)
