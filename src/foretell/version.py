"""The version of this release, which every stored file records."""

__version__ = "0.2.0"
