"""Pictures of how a translation was decoded."""
