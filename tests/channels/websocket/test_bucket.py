from channels.websocket.bucket import Bucket


def test_allows_a_burst_and_then_as_much_as_flows_in() -> None:
    time = 0.0
    bucket = Bucket(rate=2, burst=3, clock=lambda: time)
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    time = 1.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]


def test_a_long_rest_earns_no_more_than_a_burst() -> None:
    time = 0.0
    bucket = Bucket(rate=2, burst=3, clock=lambda: time)
    time = 1e6
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
