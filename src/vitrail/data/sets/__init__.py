"""Sets that have a name and no files of their own: their samples are made, of numbers drawn at random or of MNIST.

    planted.py         images whose evidence is known: what an explanation has to find
    mnist_m.py         MNIST's digits on photographs, as the paper of domain adaptation made them
    digit_strings.py   texts to sort (sort-digits), and images of several digits to read (mnist-strings)

They are read by the door of all data (`vitrail.data.sources`) and are for lessons, tests and benchmarks.
"""

__all__ = []
