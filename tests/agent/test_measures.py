from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.measures import Measures
from gateway.agent.tokens import NOTHING, measure_message, total
from gateway.dialogue import Message, Picture, UserMessage


def test_a_message_measures_what_is_sent_of_it() -> None:
    message = UserMessage(text="hello there", sender="Ann", sender_id="7")
    named, nameless = Measures(names_senders=True), Measures(names_senders=False)
    assert named.known(message).sent is message
    assert named.known(message).measure == measure_message(message)
    assert nameless.known(message).sent == UserMessage(text="hello there")
    assert nameless.known(message).measure == measure_message(UserMessage(text="hello there"))


def test_a_message_is_made_ready_once() -> None:
    measures, message = Measures(names_senders=False), UserMessage(text="hello", sender="Ann")
    assert measures.known(message) is measures.known(message)
    assert not measures.unknown([message])


def test_long_messages_do_not_stay() -> None:
    measures = Measures(names_senders=False)
    messages = [UserMessage(text=str(number) * 1_000_000) for number in range(9)]
    for message in messages:
        measures.known(message)
    assert measures.unknown([messages[0]])
    assert not measures.unknown([messages[-1]])


def test_many_messages_do_not_stay() -> None:
    measures = Measures(names_senders=False)
    messages: list[Message] = [UserMessage(text="x") for _ in range(9_000)]
    for message in messages:
        measures.known(message)
    assert measures.unknown([messages[0]])
    assert not measures.unknown(messages[-8_000:])


def test_pictures_do_not_stay() -> None:
    """Each turn is shown them anew: they would fill the memory long before there are many messages."""
    measures = Measures(names_senders=False)
    photos = [Picture(name="a", file="f/a", media_type="image/png", data=bytes(1_000_000)) for _ in range(9)]
    messages = [UserMessage(text="look", pictures=(photo,)) for photo in photos]
    for message in messages:
        measures.known(message)
    assert measures.unknown([messages[0]])
    assert not measures.unknown([messages[-1]])


@given(window=st.integers(2, 12), steps=st.lists(st.integers(1, 3), max_size=12))
def test_a_conversation_that_goes_on_comes_to_the_sum_of_its_messages(window: int, steps: list[int]) -> None:
    measures, said = Measures(names_senders=False), [UserMessage(text="begin", sender="Ann")]
    for number, added in enumerate(steps):
        said += [UserMessage(text="word " * number + "x" * each, sender="Ann") for each in range(added)]
        shown: list[Message] = [*said[-window:]]
        counted = measures.counted(shown)
        assert counted.measure == total(measures.known(message).measure for message in shown)
        assert [each.message for each in counted.known] == shown
        assert not measures.unknown(shown)


def test_a_conversation_that_went_another_way_is_counted_anew() -> None:
    measures, said = Measures(names_senders=False), [UserMessage(text=text) for text in ("a", "b c", "d", "e f g", "h")]
    measures.counted([*said[:3]])
    other: list[Message] = [UserMessage(text="something else"), *said[2:]]
    assert measures.counted(other).measure == total(map(measure_message, other))
    assert measures.counted([]).measure == NOTHING
