"""Signatures by the examples in the documentation of each sender, and every way to get one wrong."""

from base64 import b64encode
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.webhook.signatures import TOLERANCE, SignatureRejected, has_signature, sign, verify
from config import HookPreset, Secret
from tests.channels.webhook.harness import KEY, PRESETS, SECRETS, SIGNERS, digest, sign_standard

NOW = 1_700_000_000.0
BODY = b'{"id": "evt_1", "event_id": "Ev1"}'
OTHER = Secret("another-secret-of-good-length")


def check(preset: str, headers: Mapping[str, str], body: bytes = BODY, *, now: float = NOW, secret: str = "") -> str:
    return verify(HookPreset(preset), [Secret(secret or SECRETS[preset])], headers, body, now=now)


def test_the_example_of_standard_webhooks() -> None:
    """From the tests of its reference implementation."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    body, secret = b'{"test": 2432232314}', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert check("standard", headers, body, now=1614265330, secret=secret) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert sign(Secret(secret), "msg_p5jXN8AQM9LWM0D4loKWxJek", body, now=1614265330) == headers


def test_the_example_of_github() -> None:
    headers = {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    assert check("github", headers, b"Hello, World!", secret="It's a Secret to Everybody")


def test_the_example_of_slack() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
        b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
        b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    check("slack", headers, body, now=1531420618, secret="8f742231b10e8888abcd99yyyzzz85a5")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_signed_call_is_accepted_and_a_changed_one_is_not(preset: str) -> None:
    headers = SIGNERS[preset](BODY, "d1", NOW)
    check(preset, headers)
    assert has_signature(HookPreset(preset), headers)
    assert not has_signature(HookPreset(preset), {})
    if preset != "gitlab":  # Its older token signs nothing.
        with pytest.raises(SignatureRejected):
            check(preset, headers, BODY + b" ")
    with pytest.raises(SignatureRejected):
        verify(HookPreset(preset), [OTHER], headers, BODY, now=NOW)
    for name, value in headers.items():
        if "delivery" in name.lower() or name in {"Idempotency-Key", "X-Gitlab-Event-UUID"}:
            continue
        for wrong in ("", "null", "é", "\udce9", value[:-1], f"{value}x", value[::-1], "x" * 5_000):
            with pytest.raises(SignatureRejected):
                check(preset, {**headers, name: wrong})
        with pytest.raises(SignatureRejected):
            check(preset, {key: each for key, each in headers.items() if key != name})


@pytest.mark.parametrize("preset", ["standard", "stripe", "slack"])
def test_the_timestamp_may_differ_by_five_minutes(preset: str) -> None:
    for offset in (-TOLERANCE, 0, TOLERANCE):
        check(preset, SIGNERS[preset](BODY, "d1", NOW + offset))
    for offset in (-TOLERANCE - 1, TOLERANCE + 1, -600, 10**9):
        with pytest.raises(SignatureRejected, match="timestamp"):
            check(preset, SIGNERS[preset](BODY, "d1", NOW + offset))


@pytest.mark.parametrize("preset", PRESETS)
def test_any_of_several_secrets_is_accepted_while_one_is_replaced(preset: str) -> None:
    headers, secret = SIGNERS[preset](BODY, "d1", NOW), Secret(SECRETS[preset])
    for secrets in ([OTHER, secret], [secret, OTHER]):
        verify(HookPreset(preset), secrets, headers, BODY, now=NOW)


def test_one_of_several_signatures_is_enough() -> None:
    headers = sign_standard(BODY, "d1", NOW)
    wrong = b64encode(bytes(32)).decode()
    listed = f"v1a,{wrong} v2,{wrong} v1,{wrong} {headers['webhook-signature']} nonsense"
    assert check("standard", {**headers, "webhook-signature": listed}) == "d1"
    with pytest.raises(SignatureRejected):
        check("standard", {**headers, "webhook-signature": headers["webhook-signature"].replace("v1,", "v1a,")})


def test_a_secret_without_prefix_is_taken_as_it_is() -> None:
    plain = "a-plain-secret-of-good-length"
    headers = sign_standard(BODY, "d1", NOW, plain.encode())
    assert check("standard", headers, secret=plain) == "d1"


@pytest.mark.parametrize("wrong", ["a.b", "", " ", "x" * 257, "ä"])
def test_an_id_that_could_be_read_in_two_ways_is_refused(wrong: str) -> None:
    """A call signed as `id.time.body` must not pass for one with the id `id.time` and the rest of the body."""
    with pytest.raises(SignatureRejected, match="webhook-id"):
        check("standard", sign_standard(BODY, wrong, NOW))
    body = f"{int(NOW)}.evil".encode()
    signed = sign_standard(body, "d1", NOW)
    moved = {**signed, "webhook-id": f"d1.{int(NOW)}", "webhook-timestamp": str(int(NOW))}
    with pytest.raises(SignatureRejected):
        check("standard", moved, b"evil")


def test_another_delivery_header_does_not_make_a_recorded_call_of_github_a_new_one() -> None:
    first = check("github", SIGNERS["github"](BODY, "d1", NOW))
    assert first == check("github", SIGNERS["github"](BODY, "d2", NOW))
    assert first != check("github", SIGNERS["github"](BODY + b" ", "d1", NOW), BODY + b" ")


def test_a_signing_token_of_gitlab_is_never_accepted_as_a_plain_one() -> None:
    """https://docs.gitlab.com/user/project/integrations/webhooks/ - GitLab 18 signs as Standard Webhooks has it."""
    signing = SECRETS["standard"]
    assert check("gitlab", sign_standard(BODY, "d1", NOW), secret=signing) == "d1"
    with pytest.raises(SignatureRejected):
        check("gitlab", {"X-Gitlab-Token": signing, "Idempotency-Key": "d1"}, secret=signing)
    both = [Secret(signing), Secret(SECRETS["gitlab"])]
    assert verify(HookPreset.GITLAB, both, SIGNERS["gitlab"](BODY, "d2", NOW), BODY, now=NOW) == "d2"
    assert verify(HookPreset.GITLAB, both, sign_standard(BODY, "d3", NOW), BODY, now=NOW) == "d3"
    with pytest.raises(SignatureRejected):
        verify(HookPreset.GITLAB, both, {"X-Gitlab-Token": signing}, BODY, now=NOW)


def test_gitlab_names_a_delivery_by_its_key_and_older_versions_by_the_event() -> None:
    token = {"X-Gitlab-Token": SECRETS["gitlab"]}
    assert check("gitlab", {**token, "Idempotency-Key": "k", "X-Gitlab-Event-UUID": "e"}) == "k"
    assert check("gitlab", {**token, "Idempotency-Key": "not one\tid", "X-Gitlab-Event-UUID": "e"}).startswith("e-")
    assert check("gitlab", token) == ""


def test_calls_of_an_older_gitlab_that_share_the_id_of_an_event_are_told_apart() -> None:
    """A call that an earlier call has led to has the same id, says GitLab's documentation."""
    headers = {"X-Gitlab-Token": SECRETS["gitlab"], "X-Gitlab-Event-UUID": "e"}
    assert check("gitlab", headers, b"{}") == check("gitlab", headers, b"{}")
    assert check("gitlab", headers, b"{}") != check("gitlab", headers, b"[]")


@given(st.binary(max_size=200), st.text("abcDEF_-0123", min_size=1, max_size=40), st.integers(0, 10**11))
def test_what_we_sign_is_accepted(body: bytes, message_id: str, at: int) -> None:
    headers = sign(Secret(SECRETS["standard"]), message_id, body, now=at)
    assert check("standard", headers, body, now=at) == message_id
    assert headers == sign_standard(body, message_id, at)
    assert len(digest(KEY, body)) == 32


@given(
    st.dictionaries(st.sampled_from(["webhook-id", "Stripe-Signature", "X-Slack-Signature"]), st.text()), st.binary()
)
def test_no_header_breaks_the_check(headers: dict[str, str], body: bytes) -> None:
    for preset in PRESETS:
        with pytest.raises(SignatureRejected):
            check(preset, {name: value.encode("utf-8", "replace").decode() for name, value in headers.items()}, body)
