"""Sets that are made for experiments: what is in them is known exactly. They can be typed as any other set.

planted          one digit among shuffled ones: where the evidence lies is known
mnist_m          MNIST's digits on photographs
digit_strings    strings of digits to sort, and images of digits to read
"""

__all__ = []
