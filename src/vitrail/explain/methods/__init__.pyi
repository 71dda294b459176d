from .table import DEFAULT as DEFAULT, METHODS as METHODS, Method as Method, nearest_method as nearest_method
