"""The command line of studies and of what is made of their records: a wrong option is one line, and code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind the options, and the studies a line each."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"kvtui: {message} ({self.prog} --help tells more)\n")
