"""`--decoding`: the drivers of the decoder."""
