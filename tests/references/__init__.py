"""Published decoders as plain loops, one prompt at a time: what the recipes of docs/parity.md are compared with."""
