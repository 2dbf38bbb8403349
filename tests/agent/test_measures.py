from gateway.agent.measures import Measures
from gateway.agent.tokens import measure_message
from gateway.dialogue import Picture, UserMessage


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
    messages = [UserMessage(text="x") for _ in range(9_000)]
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
