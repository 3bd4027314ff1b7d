"""The widgets. Each shows a part of a `RunState` that is given to it, draws only the lines that changed, and reaches
neither up nor sideways."""
