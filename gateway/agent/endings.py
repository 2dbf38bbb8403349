"""How an answer may end other than by being finished."""

__all__ = ["CUT_SHORT", "DECLINED", "THOUGHT_ONLY"]

CUT_SHORT = "\n\n*(It ends here because the model has reached its limit for one answer.)*"
DECLINED = "The model declined to answer that."
THOUGHT_ONLY = (
    "The model has used up its limit for one answer without having said anything. "
    "Its operator can raise max_output_tokens."
)
