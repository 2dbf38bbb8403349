from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.safe_http.addresses import is_allowed, is_local, is_public

PRIVATE = [
    "0.0.0.0",  # noqa: S104 - nothing is bound.
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::5efe:7f00:1",
    "fec0::1",
    "ff02::1",
    "2606:4700::5efe:7f00:1",
    "2606:4700::200:5efe:a00:1",
    "5f00::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_and_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::8a"])
def test_addresses_of_the_public_web_are_public(address: str) -> None:
    assert is_allowed(ip_address(address))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["::ffff:0:0", "::", "64:ff9b::", "2001::"]))
def test_an_ipv4_address_inside_an_ipv6_address_is_not_public(value: int, prefix: str) -> None:
    assert not is_public(IPv6Address(int(IPv6Address(prefix)) + value))


@given(st.sampled_from(["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"]), st.integers(0, 2**16 - 1))
def test_every_address_of_a_private_network_is_private(network: str, offset: int) -> None:
    net = IPv4Network(network)
    assert not is_public(net[offset])
    assert not is_public(IPv4Address(net[-1 - offset]))


def test_addresses_of_this_machine_are_local() -> None:
    assert is_local(ip_address("127.0.0.1"))
    assert not is_local(ip_address("93.184.216.34"))
