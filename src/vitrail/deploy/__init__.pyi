from .export import Exported as Exported, export as export
