"""`python -m plugrl` is `plugrl`."""

from plugrl.cli.app import main

if __name__ == "__main__":
    main()
