from pathlib import Path

import pytest

from config import Secret
from gateway.http.auth import (
    MAX_NETWORKS,
    MAX_WRONG_ATTEMPTS,
    Auth,
    AuthRateLimiter,
    TooManyAttempts,
    is_loopback,
    network_of,
)
from tests.http.harness import BEARER, Time, serving

FAR = "203.0.113.7"


def wrong() -> str | None:
    return None


def right() -> str | None:
    return "right"


def locked_out(time: Time, remote: str) -> AuthRateLimiter:
    limiter = AuthRateLimiter(time.clock().monotonic)
    for _ in range(MAX_WRONG_ATTEMPTS):
        assert limiter.attempt(remote, wrong) is None
    return limiter


def test_after_ten_wrong_attempts_from_elsewhere_no_credential_is_checked() -> None:
    limiter = locked_out(Time(), FAR)
    with pytest.raises(TooManyAttempts):
        limiter.attempt(FAR, lambda: pytest.fail("evaluated"))


def test_attempts_are_allowed_again_after_a_minute() -> None:
    time = Time()
    limiter = locked_out(time, FAR)
    time.now += 59
    with pytest.raises(TooManyAttempts) as refusal:
        limiter.attempt(FAR, right)
    assert refusal.value.headers["Retry-After"] == "1"
    time.now += 1
    assert limiter.attempt(FAR, right) == "right"


def test_other_addresses_are_not_locked_out() -> None:
    assert locked_out(Time(), FAR).attempt("203.0.113.8", right) == "right"


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_the_right_credential_always_passes_from_this_machine(loopback: str) -> None:
    limiter = locked_out(Time(), loopback)
    with pytest.raises(TooManyAttempts):
        limiter.attempt(loopback, wrong)
    assert limiter.attempt(loopback, right) == "right"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FAR, f"::ffff:{FAR}"),
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("fe80::1%eth0", "fe80::2%eth1"),
    ],
)
def test_addresses_that_one_person_can_have_count_together(one: str, other: str) -> None:
    with pytest.raises(TooManyAttempts):
        locked_out(Time(), one).attempt(other, right)


def test_different_networks_count_separately() -> None:
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8:0:2::1")


def test_the_control_socket_is_local() -> None:
    assert is_loopback("")
    assert is_loopback(None)


def test_the_table_is_bounded_and_forgets_the_oldest_network_first() -> None:
    limiter = locked_out(Time(), FAR)
    for number in range(MAX_NETWORKS - 1):
        limiter.attempt(f"2001:db8:{number:x}::1", wrong)
    with pytest.raises(TooManyAttempts):
        limiter.attempt(FAR, right)
    limiter.attempt("2001:db9::1", wrong)
    assert limiter.attempt(FAR, right) == "right"


async def test_brute_force_from_this_machine_is_slowed_down_but_the_owner_gets_in(tmp_path: Path) -> None:
    time = Time()
    async with serving(tmp_path, time=time) as running:
        guesses = [{"Authorization": f"Bearer guess-{number}"} for number in range(50)]
        answers = [await running.status("GET", "/auth/whoami", headers=guess) for guess in guesses]
        assert answers == [401] * 10 + [429] * 40
        assert await running.status("GET", "/readyz", headers=guesses[0]) == 429
        assert await running.status("POST", "/auth/exchange", json={"code": "guess"}) == 429
        async with running.client.get("/auth/whoami", headers=guesses[0]) as response:
            assert int(response.headers["Retry-After"]) == 60
        assert await running.status("GET", "/auth/whoami", headers=BEARER) == 200
        code = running.auth.mint_code()
        assert await running.status("POST", "/auth/exchange", json={"code": code}) == 200


@pytest.mark.parametrize(
    "headers", [{"Host": "gate.example"}, {"X-Forwarded-For": "203.0.113.7"}, {"Forwarded": "for=203.0.113.7"}]
)
async def test_brute_force_through_a_proxy_locks_the_proxy_out(tmp_path: Path, headers: dict[str, str]) -> None:
    async with serving(tmp_path, time=Time(), allowed_hosts=("gate.example",)) as running:
        guesses = [headers | {"Authorization": f"Bearer guess-{number}"} for number in range(12)]
        answers = [await running.status("GET", "/auth/whoami", headers=guess) for guess in guesses]
        assert answers == [401] * 10 + [429] * 2
        assert await running.status("GET", "/auth/whoami", headers=headers | BEARER) == 429
        body = {"code": running.auth.mint_code()}
        assert await running.status("POST", "/auth/exchange", json=body, headers=headers) == 429
        assert await running.status("POST", "/auth/exchange", json=body) == 200
        assert await running.status("GET", "/auth/whoami", headers=BEARER) == 200


async def test_wrong_codes_count_as_attempts(tmp_path: Path) -> None:
    async with serving(tmp_path, time=Time()) as running:
        answers = [await running.status("POST", "/auth/exchange", json={"code": str(n)}) for n in range(12)]
        assert answers == [401] * 10 + [429] * 2


async def test_a_request_without_a_credential_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path, time=Time()) as running:
        assert {await running.status("GET", "/auth/whoami") for _ in range(30)} == {401}


async def test_an_expired_cookie_does_not_count(tmp_path: Path) -> None:
    time = Time()
    async with serving(tmp_path, time=time) as running:
        headers = running.cookie() | running.own
        time.now += 31 * 24 * 3600
        assert {await running.status("GET", "/auth/whoami", headers=headers) for _ in range(30)} == {401}


async def test_a_cookie_of_an_old_token_does_not_keep_the_page_from_loading(tmp_path: Path) -> None:
    """After a new token, the browser still sends the old cookie with every file of the page."""
    async with serving(tmp_path, time=Time()) as running:
        headers = running.cookie(Auth(Secret("the-token-before-this"))) | running.own
        assert {await running.status("GET", "/readyz", headers=headers) for _ in range(30)} == {200}
        assert await running.status("GET", "/auth/whoami", headers=headers) == 401
