"""The exceptions of this package. Their text is one line: what failed, why, and what to do."""


class Error(Exception):
    """Base class of this package's exceptions."""

    __module__ = "gpupool"


class AddressError(Error, ValueError):
    """The server's address, or a request for resources, is invalid."""

    __module__ = "gpupool"


class LoadError(Error):
    """The client library cannot be used in this process, for example because another driver is loaded."""

    __module__ = "gpupool"


class ServerError(Error):
    """The server does not answer or refuses this client, or the pool grants no GPU."""

    __module__ = "gpupool"
