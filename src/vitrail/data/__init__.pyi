from .columns import (
    Column as Column,
    Labels as Labels,
    Match as Match,
    RawDataset as RawDataset,
    Samples as Samples,
    Texts as Texts,
    Values as Values,
    Vocabulary as Vocabulary,
)
from .dataset import Dataset as Dataset, Split as Split
from .images import ArrayImages as ArrayImages, FileImages as FileImages, Images as Images
from .layout import Layout as Layout
from .loader import load_resident as load_resident
from .packing import Packed as Packed, pack as pack
from .preprocessing import Preprocessing as Preprocessing
from .sources import read as read
