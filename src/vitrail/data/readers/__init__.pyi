from .folder import image_files as image_files
from .planted import (
    parse_planted as parse_planted,
    planted_images as planted_images,
    planted_test_images as planted_test_images,
)
