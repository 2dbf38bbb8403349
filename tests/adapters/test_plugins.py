from pathlib import Path

import pytest

from gateway.adapters.registry import find_channel
from gateway.errors import CannotStart

MODULES = {
    "syntax": "def open(:",
    "missing": "import no_such_module_anywhere",
    "exits": "raise SystemExit(3)",
    "raises": "raise ValueError('boom')",
    "number": "open = 5",
    "empty": "",
    "good": "def open(context): ...",
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution of somebody else, whose channels are each broken in their own way."""
    package, metadata = tmp_path / "stranger_channels", tmp_path / "strangers_package-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").touch()
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text)
    names = [*MODULES, "gone"]
    points = "\n".join(f"stranger-{name} = stranger_channels.{name}:open" for name in names)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[gatehouse.channels]\n{points}\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_an_unknown_channel_is_named_with_what_there_is() -> None:
    with pytest.raises(CannotStart, match=r"channels\.carrier_pigeon .* web\. .*enabled to false"):
        find_channel("carrier_pigeon")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("syntax", "SyntaxError"),
        ("exits", "SystemExit: 3"),
        ("raises", "ValueError: boom"),
        ("number", "`stranger_channels.number:open` cannot be called"),
        ("empty", "AttributeError"),
        ("missing", "`no_such_module_anywhere`, which is not installed"),
        ("gone", "`stranger_channels.gone`, which is not installed"),
    ],
)
@pytest.mark.usefixtures("stranger")
def test_a_broken_channel_is_told_with_its_name_and_whose_it_is(name: str, fault: str) -> None:
    with pytest.raises(CannotStart) as refused:
        find_channel(f"stranger-{name}")
    sentence = str(refused.value)
    assert sentence.startswith(f"channels.stranger-{name} is enabled, but ")
    assert fault in sentence
    assert "`strangers-package`" in sentence
    assert f"set channels.stranger-{name}.enabled to false" in sentence


@pytest.mark.usefixtures("stranger")
def test_a_channel_of_somebody_else_is_found_like_ours() -> None:
    assert callable(find_channel("stranger-good"))
    assert callable(find_channel("web"))
