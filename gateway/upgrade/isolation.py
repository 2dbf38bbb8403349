"""The settings of a rehearsal: a gateway on the copy that reaches no platform, no model and no program."""

from pathlib import Path

from config import AgentSettings, ChannelSettings, GatewaySettings, SessionSettings, Settings, StorageSettings


def isolated(settings: Settings, storage: StorageSettings, data_dir: Path) -> Settings:
    """Return settings for a gateway on a copy of the data.

    They are new settings with what the data needs, and not a copy with something removed: so a table that is added
    later stays without effect here. No secret is in them but the password of the database.
    """
    gateway, session = settings.gateway, settings.session
    agent = AgentSettings(tools=(), ask=())
    return Settings(
        gateway=GatewaySettings(data_dir=data_dir, timezone=gateway.timezone, max_queued=gateway.max_queued),
        storage=storage,
        session=SessionSettings(
            dm_scope=session.dm_scope,
            group_scope=session.group_scope,
            identity_links=session.identity_links,
            max_messages=session.max_messages,
            backlog_limit=session.backlog_limit,
            compaction=False,
            archive_to_memory=False,
            ttl_days=0,
        ),
        agents=dict.fromkeys(settings.agents, agent),
        channels={name: ChannelSettings(enabled=False) for name in ("web", "terminal")},
    )
