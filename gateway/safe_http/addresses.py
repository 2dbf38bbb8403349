"""Decides which IP addresses are public, and which lead into this machine or its network."""

import ipaddress
import socket

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_V6_NOT_PUBLIC = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # Protocol assignments, with Teredo: IPv4 in IPv6.
            "2001:db8::/32",
            "2002::/16",  # 6to4: IPv4 in IPv6.
            "3fff::/20",
        ),
    )
)
_V4_NOT_PUBLIC = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            "168.63.129.16/32",  # Azure's metadata service, in a public range.
            "192.0.0.0/24",  # Oracle's metadata service. Older Pythons count parts of it as global.
            "192.88.99.0/24",  # The relay of 6to4.
            *("192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_allowed(address: IpAddress) -> bool:
    """Return whether we may connect to `address` on behalf of a model or a person."""
    return is_public(address) and not is_local(address)


def is_public(address: IpAddress) -> bool:
    """Return whether `address` is certainly public. An IPv6 address that contains an IPv4 address never is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in net for net in _V4_NOT_PUBLIC)
    return (
        address in _GLOBAL_UNICAST
        and address.is_global
        and not any(address in net for net in _V6_NOT_PUBLIC)
        and (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP
    )


def is_local(address: IpAddress) -> bool:
    """Return whether `address` belongs to this machine. Such an address may be public; only local ones can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - IP has these two.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
