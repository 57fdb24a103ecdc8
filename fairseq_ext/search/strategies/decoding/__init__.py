"""`--decoding`: what drives the decoder."""
