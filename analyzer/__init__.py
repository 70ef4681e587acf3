"""Tritune: finds the Triton configuration that keeps a latency promise for the least money.

Importing this package is cheap; heavy libraries load where they are used.
"""

__version__ = "0.1.0"
