"""Updates of any content, as Telegram might send them, for property tests."""

from hypothesis import strategies as st

numbers = st.integers(-(10**15), 10**15)
words = st.text(max_size=20)
people = st.fixed_dictionaries({"id": numbers, "is_bot": st.booleans(), "first_name": words})
chats = st.fixed_dictionaries(
    {"id": numbers, "type": st.sampled_from(["private", "group", "supergroup", "channel", "other"])}
)
entities = st.fixed_dictionaries(
    {"type": st.sampled_from(["mention", "bot_command", "text_mention", "url"]), "offset": numbers, "length": numbers}
)
messages = st.fixed_dictionaries(
    {"message_id": numbers, "date": st.integers(0, 2**31), "chat": chats},
    optional={
        "from": people,
        "sender_chat": chats,
        "text": words,
        "caption": words,
        "entities": st.lists(entities, max_size=3),
        "caption_entities": st.lists(entities, max_size=3),
        "edit_date": st.integers(-(10**30), 10**30),
        "is_topic_message": st.booleans(),
        "message_thread_id": numbers,
        "document": st.fixed_dictionaries({"file_id": words, "file_unique_id": words, "file_name": words}),
        "forward_origin": st.fixed_dictionaries({"type": st.just("user"), "date": st.just(1), "sender_user": people}),
    },
)
queries = st.fixed_dictionaries(
    {"id": words, "from": people, "chat_instance": words}, optional={"message": messages, "data": words}
)
updates = st.one_of(
    st.fixed_dictionaries({"update_id": numbers, "message": messages}),
    st.fixed_dictionaries({"update_id": numbers, "edited_message": messages}),
    st.fixed_dictionaries({"update_id": numbers, "callback_query": queries}),
    st.fixed_dictionaries({"update_id": numbers}),
)
