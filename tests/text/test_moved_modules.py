from importlib import import_module

import pytest

from gateway import text
from gateway.text import plain, splitting
from gateway.text.markdown import render_table


@pytest.mark.parametrize(
    ("module", "name", "new"),
    [
        ("hygiene", "excerpt", plain.excerpt),
        ("phrases", "ago", plain.ago),
        ("tables", "draw_table", plain.draw_table),
        ("clusters", "is_border", splitting.is_border),
        ("parsing", "drawn_table", render_table),
    ],
)
def test_an_import_from_a_moved_module_still_works_with_a_warning(module: str, name: str, new: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"gateway.text.{module}.{name} is deprecated: use gateway.text."):
        assert getattr(import_module(f"gateway.text.{module}"), name) is new
    assert getattr(text, module) is import_module(f"gateway.text.{module}")


def test_an_unknown_name_of_a_moved_module_is_an_attribute_error() -> None:
    with pytest.warns(DeprecationWarning, match="nothing"), pytest.raises(AttributeError):
        _ = import_module("gateway.text.hygiene").nothing
