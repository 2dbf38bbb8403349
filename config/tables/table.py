"""What all tables of the settings have in common."""

from pydantic import BaseModel, ConfigDict

__all__ = ["DAY", "Table"]

DAY = 86_400


class Table(BaseModel):
    # Each class would otherwise build its own validator at import; `Settings` builds one for all of them.
    # TOML has `inf` and `nan`, so they are dumped as they are.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True, ser_json_inf_nan="constants"
    )
