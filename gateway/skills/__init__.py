"""Agent Skills: folders with instructions that an agent loads when it needs them (https://agentskills.io)."""
