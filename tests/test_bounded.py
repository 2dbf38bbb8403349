from gateway.bounded import BoundedDict


def test_the_oldest_entry_is_dropped_beyond_the_limit() -> None:
    numbers = BoundedDict[str, int](2)
    numbers["a"] = 1
    numbers["b"] = 2
    numbers["c"] = 3
    assert numbers == {"b": 2, "c": 3}


def test_an_assigned_key_becomes_the_newest() -> None:
    numbers = BoundedDict[str, int](2)
    numbers["a"] = 1
    numbers["b"] = 2
    numbers["a"] = 3
    numbers.setdefault("c", 4)
    assert list(numbers.items()) == [("a", 3), ("c", 4)]


def test_reading_a_key_does_not_keep_it_but_move_to_end_does() -> None:
    numbers = BoundedDict[str, int](2)
    numbers["a"] = 1
    numbers["b"] = 2
    assert numbers.get("a") == numbers["a"] == 1
    numbers["c"] = 3
    assert "a" not in numbers
    numbers.move_to_end("b")
    numbers["d"] = 4
    assert list(numbers) == ["b", "d"]


def test_on_drop_hears_of_dropped_entries_but_not_of_deleted_ones() -> None:
    dropped: list[tuple[str, int]] = []
    numbers = BoundedDict[str, int](1, on_drop=lambda key, value: dropped.append((key, value)))
    numbers["a"] = 1
    del numbers["a"]
    numbers["b"] = 2
    numbers["c"] = 3
    assert dropped == [("b", 2)]
