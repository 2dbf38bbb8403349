"""Here aiogram is loaded as the daemon loads it, before a test imports it by itself."""

from channels.telegram.aiogram_loading import load_aiogram

load_aiogram()
