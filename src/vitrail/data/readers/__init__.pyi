from .folder import EXTENSIONS as EXTENSIONS, image_files as image_files
from .planted import (
    is_planted as is_planted,
    parse_planted as parse_planted,
    planted_images as planted_images,
    planted_test_images as planted_test_images,
)
from .table import (
    FORMATS as FORMATS,
    MANIFESTS as MANIFESTS,
    NAMED as NAMED,
    Format as Format,
    Reader as Reader,
    check_root as check_root,
    format_of as format_of,
    is_address as is_address,
    is_named as is_named,
    is_packed as is_packed,
    named_files as named_files,
    overview as overview,
    read as read,
)
