"""Latency tables of module families, measured on the hardware and engine that will run them."""
