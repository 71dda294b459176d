from .evaluate import remembered_data as remembered_data
