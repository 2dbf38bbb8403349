import os
import stat
from pathlib import Path

import pytest

from config import Secret
from gateway.errors import CannotStart
from gateway.http.auth import CODE_LIFETIME, COOKIE_LIFETIME, MAX_REVOKED, Auth, cookie_id, load_or_make_token
from tests.http.harness import TOKEN, Time


def auth(time: Time | None = None, token: str = TOKEN) -> Auth:
    return Auth(Secret(token), (time or Time()).clock())


def cookie_of(maker: Auth) -> str:
    cookie = maker.redeem(maker.mint_code())
    assert cookie is not None
    return cookie


def test_a_cookie_survives_a_restart() -> None:
    assert auth().is_signed(cookie_of(auth()))


def test_a_new_token_invalidates_cookies() -> None:
    assert not auth(token="the-next-token-we-had").is_signed(cookie_of(auth()))


def test_a_cookie_lasts_thirty_days() -> None:
    time = Time()
    cookie = cookie_of(auth(time))
    time.now += COOKIE_LIFETIME - 1
    assert not auth(time).is_expired(cookie)
    time.now += 1
    assert auth(time).is_expired(cookie)


def test_the_expiry_in_a_cookie_cannot_be_changed() -> None:
    version, expires, nonce, signature = cookie_of(auth()).split(".")
    assert not auth().is_signed(f"{version}.{int(expires) + 1}.{nonce}.{signature}")


def test_revoking_one_cookie_leaves_the_others_valid() -> None:
    ours = auth()
    first, second = cookie_of(ours), cookie_of(ours)
    ours.revoke(first)
    assert ours.is_expired(first)
    assert not ours.is_expired(second)


def test_made_up_cookies_cannot_fill_the_memory_of_revoked_ones() -> None:
    ours = auth()
    cookie = cookie_of(ours)
    ours.revoke(cookie)
    for number in range(MAX_REVOKED + 1):
        ours.revoke(f"v1.{number}.x.y")
    assert ours.is_expired(cookie)


def test_beyond_the_limit_the_revoked_cookie_that_expires_first_is_forgotten() -> None:
    time = Time()
    ours = auth(time)
    cookies = []
    for _ in range(MAX_REVOKED + 1):
        time.now += 1
        cookies.append(cookie_of(ours))
        ours.revoke(cookies[-1])
    assert not ours.is_expired(cookies[0])
    assert all(ours.is_expired(cookie) for cookie in cookies[1:])


@pytest.mark.parametrize("value", ["", ".", "...", "v1", "v1.9.9.9", "\udcff.x", "ä.ö"])
def test_nonsense_is_neither_a_cookie_nor_a_token_nor_a_code(value: str) -> None:
    assert not auth().is_signed(value)
    assert not auth().is_token(value)
    assert auth().redeem(value) is None


def test_codes_are_long_and_unique() -> None:
    codes = {auth().mint_code() for _ in range(100)}
    assert len(codes) == 100
    assert all(len(code) >= 22 for code in codes)


def test_a_code_works_once_and_within_the_hour() -> None:
    time = Time()
    ours = auth(time)
    first, second = ours.mint_code(), ours.mint_code()
    time.now += 3599
    assert ours.redeem(first)
    assert ours.redeem(first) is None
    time.now += 1
    assert ours.redeem(second) is None


def test_only_the_newest_sixteen_codes_are_valid() -> None:
    ours = auth()
    codes = [ours.mint_code() for _ in range(17)]
    assert ours.redeem(codes[0]) is None
    assert all(ours.redeem(code) for code in codes[1:])


def test_the_token_is_created_once_in_a_private_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = load_or_make_token(tmp_path, None)
    finally:
        os.umask(before)
    assert len(made.reveal()) >= 43
    assert load_or_make_token(tmp_path, None) == made
    assert stat.S_IMODE((tmp_path / "http.token").stat().st_mode) == 0o600


def test_the_configured_token_needs_no_file(tmp_path: Path) -> None:
    assert load_or_make_token(tmp_path, Secret(TOKEN)).reveal() == TOKEN
    assert list(tmp_path.iterdir()) == []


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"http\.token in the config"):
        load_or_make_token(tmp_path, Secret("short"))
    (tmp_path / "http.token").write_text("")
    with pytest.raises(CannotStart, match=str(tmp_path)):
        load_or_make_token(tmp_path, None)


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20, None], ids=["bytes", "directory"])
def test_an_unreadable_token_file_is_named_in_the_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "http.token"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(CannotStart, match=r"Can\'t read the token file .*http\.token"):
        load_or_make_token(tmp_path, None)


def test_a_half_written_token_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".http.token.k2j4").write_text("half")
    load_or_make_token(tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["http.token"]


def test_nodes_of_a_cluster_accept_the_codes_and_cookies_of_each_other() -> None:
    time = Time()
    here, there, stranger = (
        Auth(Secret(token), time.clock(), is_shared=True) for token in (TOKEN, TOKEN, "another-token-of-a-cluster")
    )
    assert here.shared_label == there.shared_label != stranger.shared_label
    code = here.mint_code()
    cookie = there.redeem(code)
    assert cookie is not None
    assert here.is_signed(cookie)
    assert not here.is_expired(cookie)
    assert not here.is_signed(code), "a code is no cookie"
    assert here.redeem(cookie) is None, "and a cookie is no code"
    assert stranger.redeem(code) is None
    assert here.revoke(cookie)
    assert there.add_revoked({cookie_id(cookie): int(time.now) + 60}) == {cookie_id(cookie)}
    assert there.add_revoked({cookie_id(cookie): int(time.now) + 60}) == set()
    assert there.is_expired(cookie)
    time.now += CODE_LIFETIME + 1
    assert there.redeem(code) is None
