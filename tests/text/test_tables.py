from gateway.text import draw_table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert draw_table([["a", "b"], ["long", "x"]]) == "a     b\n────  ─\nlong  x"
