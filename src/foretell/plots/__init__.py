"""Pictures of decoding, with matplotlib (the extra `plots`)."""
