"""Pure rules: values in, values out. No clock, no input or output."""
