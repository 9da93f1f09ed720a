"""Requests for resources of a pool, as the query of a pool:// address. The keys are those of pool-run
(client/run/request.cc); pool-lease checks the values."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from ._errors import AddressError

POOL_SCHEME = "pool://"
Value = Union[None, bool, int, float, str, Iterable[str]]


def _words(value: Value) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return ["1"]
    if isinstance(value, (int, float, str)):
        return [str(value)]
    return list(value)


def query_of(request: dict[str, Value]) -> str:
    """Returns the request as terms of a query; empty: nothing is requested."""
    from urllib.parse import quote

    return "&".join(f"{name.replace('_', '-')}={quote(word, safe='')}" for name, value in request.items() for word in _words(value))


def address_with(server: str, query: str) -> str:
    """Returns the address with the terms added to its query. Raises AddressError for terms to a server that is no pool."""
    if not query:
        return server
    if not server.startswith(POOL_SCHEME):
        names = ", ".join(dict.fromkeys(term.partition("=")[0].replace("-", "_") for term in query.split("&")))
        raise AddressError(f"{names}: only a pool grants requests; use the address pool://SCHEDULER:PORT instead of '{server}'")
    return f"{server}{'&' if '?' in server else '?'}{query}"


def has_query(address: str, query: str) -> bool:
    """True if the address ends with these terms, as address_with() adds them, or there are none."""
    return not query or address.endswith((f"?{query}", f"&{query}"))
