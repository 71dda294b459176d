"""The families whose weights open here."""

from vitrail.weights.family import Family
from vitrail.weights.google import GOOGLE
from vitrail.weights.timm import TIMM
from vitrail.weights.torchvision import TORCHVISION
from vitrail.weights.transformers import CLIP, DINOV2, VIT
from vitrail.weights.vit_pytorch import FIRST_FORM, VIT_PYTORCH

FAMILIES: tuple[Family, ...] = (TIMM, VIT, DINOV2, CLIP, TORCHVISION, GOOGLE, VIT_PYTORCH, FIRST_FORM)
