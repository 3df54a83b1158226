"""Each kind of source, turned into :class:`desync.model.Evidence`."""
