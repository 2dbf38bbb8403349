"""Signatures of webhooks: checks those of incoming calls, and signs outgoing ones. Pure: the time is an argument.

The schemes and their documentation:
- Standard Webhooks: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
- GitHub: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
- GitLab: https://docs.gitlab.com/user/project/integrations/webhooks/
- Stripe: https://docs.stripe.com/webhooks#verify-manually
- Slack: https://docs.slack.dev/authentication/verifying-requests-from-slack/
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence

from config import HookPreset, Secret
from config.settings.webhooks import SIGNING_KEY

TOLERANCE = 300.0
"""Seconds by which the timestamp of a call may differ from our clock."""
MAX_ID_CHARS = 256

_ID = re.compile(rf"[!-~]{{1,{MAX_ID_CHARS}}}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_SIGNATURE_HEADERS: Mapping[HookPreset, tuple[str, ...]] = {
    HookPreset.STANDARD: ("webhook-signature",),
    HookPreset.GITHUB: ("X-Hub-Signature-256",),
    HookPreset.GITLAB: ("webhook-signature", "X-Gitlab-Token"),
    HookPreset.STRIPE: ("Stripe-Signature",),
    HookPreset.SLACK: ("X-Slack-Signature",),
}


class SignatureRejected(Exception):
    """A call is not from the sender that it claims to be from. The text is for the log."""


def has_signature(preset: HookPreset, headers: Mapping[str, str]) -> bool:
    """Return whether a call has a signature of this kind, right or wrong. Its body need not be read for that."""
    return any(name in headers for name in _SIGNATURE_HEADERS[preset])


def verify(
    preset: HookPreset, secrets: Sequence[Secret], headers: Mapping[str, str], body: bytes, *, now: float
) -> str:
    """Return the id of the delivery, or "" if the headers have none that can be trusted. Raises `SignatureRejected`.

    Each secret is tried, and a call takes the same time whatever is wrong with it.
    """
    values = [secret.reveal() for secret in secrets]
    match preset:
        case HookPreset.STANDARD:
            return _verify_standard([signing_key(value) for value in values], headers, body, now)
        case HookPreset.GITHUB:
            return _verify_github(values, headers, body)
        case HookPreset.GITLAB:
            return _verify_gitlab(values, headers, body, now)
        case HookPreset.STRIPE:
            return _verify_stripe(values, headers, body, now)
        case HookPreset.SLACK:
            return _verify_slack(values, headers, body, now)


def sign(secret: Secret, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the headers of an outgoing call, as Standard Webhooks has them."""
    timestamp = str(int(now))
    signature = _base64_hmac(signing_key(secret.reveal()), f"{message_id}.{timestamp}.".encode() + body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature.decode()}",
    }


def signing_key(secret: str) -> bytes:
    """Return the key of a secret: base64 after `whsec_`, and any other text as it is."""
    if secret.startswith(SIGNING_KEY):
        return base64.b64decode(secret.removeprefix(SIGNING_KEY))
    return secret.encode()


def _verify_standard(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signed = _raw(f"{message_id}.{timestamp}.") + body
    listed = (each.partition(",") for each in headers.get("webhook-signature", "").split(" "))
    given = [signature for version, _, signature in listed if version == "v1"]
    _require_match((_base64_hmac(key, signed) for key in keys), given)
    _require_recent(timestamp, now)
    # With a dot in the id, another division of the signed text would turn the same call into one with another id.
    if not _ID.fullmatch(message_id) or "." in message_id:
        raise SignatureRejected("its webhook-id is not usable")
    return message_id


def _verify_github(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> str:
    given = headers.get("X-Hub-Signature-256", "").removeprefix("sha256=")
    _require_match((_hex_hmac(secret.encode(), body) for secret in secrets), [given])
    # X-GitHub-Delivery is not signed: with another one, a recorded call would pass for a new one.
    return hashlib.sha256(body).hexdigest()


def unsigned_id(preset: HookPreset, headers: Mapping[str, str]) -> str:
    """Return the id of a delivery that is not signed, or "". It stays the same if the sender repeats the delivery."""
    given = headers.get("X-GitHub-Delivery", "") if preset is HookPreset.GITHUB else ""
    return given if _ID.fullmatch(given) else ""


def _verify_gitlab(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Check a signing token, which is a key of Standard Webhooks, or an older secret token, which is sent as it is."""
    keys = [signing_key(secret) for secret in secrets if secret.startswith(SIGNING_KEY)]
    tokens = [secret for secret in secrets if not secret.startswith(SIGNING_KEY)]
    if keys and ("webhook-signature" in headers or not tokens):
        return _verify_standard(keys, headers, body, now)
    hashlib.sha256(body).digest()  # Takes the time of a signature.
    _require_match((token.encode() for token in tokens), [headers.get("X-Gitlab-Token", "")])
    # GitLab repeats a call with the same key. Versions before 17.4 have only the id of the event, which several calls
    # share if one leads to the other.
    key, event = headers.get("Idempotency-Key", ""), headers.get("X-Gitlab-Event-UUID", "")
    if _ID.fullmatch(key):
        return key
    return f"{event}-{hashlib.sha256(body).hexdigest()}" if _ID.fullmatch(event) else ""


def _verify_stripe(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> str:
    pairs = [each.strip().partition("=") for each in headers.get("Stripe-Signature", "").split(",")]
    timestamp = next((value for name, _, value in pairs if name == "t"), "")
    given = [value for name, _, value in pairs if name == "v1"]
    _require_match((_hex_hmac(secret.encode(), _raw(f"{timestamp}.") + body) for secret in secrets), given)
    _require_recent(timestamp, now)
    return ""


def _verify_slack(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> str:
    timestamp = headers.get("X-Slack-Request-Timestamp", "")
    given = headers.get("X-Slack-Signature", "").removeprefix("v0=")
    signed = _raw(f"v0:{timestamp}:") + body
    _require_match((_hex_hmac(secret.encode(), signed) for secret in secrets), [given])
    _require_recent(timestamp, now)
    return ""


def _require_match(expected: Iterable[bytes], given: Sequence[str]) -> None:
    # A list: `any` would stop at the first match, and tell by its time which one that was.
    matches = [hmac.compare_digest(right, _raw(each)) for right in expected for each in given]
    if not any(matches):
        raise SignatureRejected("its signature is wrong or missing")


def _require_recent(timestamp: str, now: float) -> None:
    if not _TIMESTAMP.fullmatch(timestamp):
        raise SignatureRejected("its timestamp is missing")
    if abs(now - int(timestamp)) > TOLERANCE:
        raise SignatureRejected("its timestamp is too old, or a clock is wrong")


def _base64_hmac(key: bytes, signed: bytes) -> bytes:
    return base64.b64encode(hmac.digest(key, signed, "sha256"))


def _hex_hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256").hex().encode()


def _raw(header: str) -> bytes:
    """Return the bytes of a header, which need not be UTF-8."""
    return header.encode("utf-8", "surrogateescape")
