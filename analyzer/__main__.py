"""``python -m analyzer``: the command ``analyze``."""

from analyzer.cli.main import main

if __name__ == "__main__":
    main()
